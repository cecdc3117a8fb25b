"""The HTTP client against a real server that misbehaves on order: what is asked again, and when it ends."""

import contextlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import ContextOverflow, ModelError
from harness.model.openai import OpenAIClient
from harness.model.patience import Attempts, Malformed, Passing, Patience, named_wait, retry_after
from harness.model.protocol import Completion, Sampling
from tests.model.misbehaving import GOOD, Answer, Served, serving

PATIENCE = Patience(request_seconds=5, passing_attempts=4, malformed_attempts=3, first_wait_seconds=0.01)


def ask(served: Served, patience: Patience = PATIENCE) -> Completion:
    with contextlib.closing(OpenAIClient(served.url, "served", patience=patience)) as client:
        return client.complete([{"role": "user", "content": "hi"}], tools=[], sampling=Sampling(), seed=5)


def answered(*answers: Answer, patience: Patience = PATIENCE) -> tuple[Completion, Served]:
    with serving(answers) as served:
        return ask(served, patience), served


def refused(*answers: Answer, patience: Patience = PATIENCE) -> tuple[str, Served]:
    """The words of the ModelError that the answers come to."""
    with serving(answers) as served:
        with pytest.raises(ModelError) as caught:
            ask(served, patience)
        return str(caught.value), served


def test_a_good_answer_is_read_whole() -> None:
    got, served = answered(Answer())
    assert (got.text, got.usage.input_tokens, got.cached_prompt_tokens) == ("hello", 7, 3)
    assert (got.server_epoch, got.in_flight, got.retries) == ("fp-1", 1, 0)
    assert served.requests[0].body["seed"] == 5


TROUBLES = {
    "503": Answer(status=503),
    "429 at once": Answer(status=429, headers={"Retry-After": "0"}),
    "500": Answer(status=500),
    "529": Answer(status=529),
    "cut": Answer(cut=True),
    "no JSON": Answer(body=b"not json"),
    "no choices": Answer(body={"choices": []}),
    "null choice": Answer(body={"choices": [None]}),
    "no object": Answer(body=[]),
    "too deep": Answer(body=b"[" * 100_000),
    "error with a good status": Answer(body={"error": {"message": "upstream is busy", "code": 503}}),
    "error in the choice": Answer(body={"choices": [{"message": {"content": ""}, "error": {"code": 502}}]}),
    "error without a code": Answer(body={"error": "upstream"}),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=list(TROUBLES))
def test_passing_trouble_is_asked_again_and_counted(trouble: Answer) -> None:
    got, served = answered(trouble, Answer())
    assert (got.text, got.retries, len(served.requests)) == ("hello", 1, 2)
    assert served.requests[0].body == served.requests[1].body


@pytest.mark.parametrize(("trouble", "attempts"), [(Answer(status=503), 4), (Answer(body=b"{"), 3)])
def test_nothing_is_retried_for_ever(trouble: Answer, attempts: int) -> None:
    told, served = refused(trouble)
    assert (len(served.requests), str(attempts) in told) == (attempts, True)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 422, 501])
def test_permanent_trouble_is_not_retried(status: int) -> None:
    told, served = refused(Answer(status=status, body={"error": {"message": "no such model"}}))
    assert f"HTTP {status}" in told and "no such model" in told
    assert len(served.requests) == 1


def test_an_account_without_money_is_not_waited_for() -> None:
    body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    told, served = refused(Answer(status=429, body=body))
    assert "insufficient_quota" in told and len(served.requests) == 1


def test_a_redirect_is_refused_and_named() -> None:
    told, served = refused(Answer(status=307, headers={"Location": "http://127.0.0.1:9/elsewhere"}))
    assert "redirects to 'http://127.0.0.1:9/elsewhere'" in told and "base_url" in told
    assert len(served.requests) == 1


def test_a_key_that_is_refused_says_where_keys_come_from() -> None:
    assert "api_key_env" in refused(Answer(status=401, body={"error": {"message": "bad key"}}))[0]


OVERFLOWS: dict[str, tuple[int, dict[str, Any]]] = {
    "openai": (
        400,
        {"error": {"message": "This model's maximum context length is 8 tokens", "code": "context_length_exceeded"}},
    ),
    "openai, code alone": (400, {"error": {"message": "Too much.", "code": "context_length_exceeded"}}),
    "vllm": (
        400,
        {"object": "error", "message": "This model's maximum context length is 8 tokens. However...", "code": 400},
    ),
    "vllm, nested": (
        400,
        {"error": {"message": "'max_tokens' is too large: 9. This model's maximum context length is 8"}},
    ),
    "vllm, engine": (
        400,
        {"error": {"message": "The decoder prompt (length 9) is longer than the maximum model length of 8."}},
    ),
    "sglang": (
        400,
        {"object": "error", "message": "The input (9 tokens) is longer than the model's context length (8 tokens)."},
    ),
    "sglang, sum": (
        400,
        {"message": "Requested token count exceeds the model's maximum context length of 8 tokens.", "code": 400},
    ),
    "llama.cpp": (
        400,
        {
            "error": {
                "code": 400,
                "message": "request (9 tokens) exceeds the available context size (8 tokens), try increasing it",
                "type": "exceed_context_size_error",
            }
        },
    ),
    "llama.cpp, as a server error": (500, {"error": {"message": "the request exceeds the available context size."}}),
    "anthropic": (400, {"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}),
    "with a good status": (200, {"error": {"message": "maximum context length is 8 tokens", "code": 400}}),
    "fastapi": (422, {"detail": [{"msg": "maximum context length is 8 tokens"}]}),
}


@pytest.mark.parametrize(("status", "body"), OVERFLOWS.values(), ids=list(OVERFLOWS))
def test_a_context_overflow_is_its_own_error_and_never_retried(status: int, body: dict[str, Any]) -> None:
    with serving([Answer(status=status, body=body), Answer()]) as served:
        with pytest.raises(ContextOverflow):
            ask(served)
        assert len(served.requests) == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "temperature must be 1"),
        (429, "tokens per minute: reduce the length of the messages or wait"),
        (404, "no model with maximum context length"),
        (400, "[{'type': 'extra_forbidden', 'input': 'the issue is about maximum context length'}]"),
    ],
)
def test_other_refusals_are_no_overflow(status: int, message: str) -> None:
    with serving([Answer(status=status, body={"error": {"message": message}})]) as served:
        with pytest.raises(ModelError) as caught:
            ask(served)
        assert not isinstance(caught.value, ContextOverflow)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("roles must alternate between user and assistant", "roles: alternate"),
        ("Conversation roles must alternate user/assistant/user/assistant/...", "roles: alternate"),
        ("System role not supported", "fold_system: true"),
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "dialect: text"),
        ("tools param requires --jinja flag", "dialect: text"),
        ("the model does not support tools", "dialect: text"),
        (
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            "max_tokens_key: max_completion_tokens",
        ),
        ("Unsupported value: 'temperature' does not support 0 with this model.", "omit: [temperature]"),
        ("Unrecognized request argument supplied: return_token_ids", "omit: [return_token_ids]"),
    ],
)
def test_what_a_study_can_mend_names_the_key_to_set(message: str, advice: str) -> None:
    status = 500 if "jinja" in message else 400
    told, served = refused(Answer(status=status, body={"error": {"message": message}}))
    assert advice in told and len(served.requests) == 1


# --- replies without an end


def test_a_reply_that_drips_ends_by_the_deadline() -> None:
    quick = Patience(request_seconds=0.5, malformed_attempts=2, first_wait_seconds=0.01)
    told, served = refused(Answer(drip_s=0.05), patience=quick)  # head included, some 15 s for the whole
    assert "no whole answer within 0.5 s" in told and len(served.requests) == 2


def test_a_silent_server_ends_by_the_deadline() -> None:
    quick = Patience(request_seconds=0.3, malformed_attempts=2, passing_attempts=2, first_wait_seconds=0.01)
    _, served = refused(Answer(delay_s=1.0), patience=quick)
    assert len(served.requests) == 2


def test_an_endless_reply_ends_by_its_size() -> None:
    small = Patience(request_seconds=20, malformed_attempts=2, first_wait_seconds=0.01, reply_bytes=1_000_000)
    told, served = refused(Answer(endless=True), patience=small)
    assert "longer than 1000000 bytes" in told and len(served.requests) == 2


def test_a_cut_reply_is_never_used() -> None:
    whole = {**GOOD, "choices": [{"message": {"content": "rm -rf ./build/cache/old"}, "finish_reason": "stop"}]}
    got, _ = answered(Answer(body=whole, cut=True), Answer())
    assert (got.text, got.retries) == ("hello", 1)


def test_no_server_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="ConnectError"):
        ask(Served("http://127.0.0.1:9/v1"))


def test_one_pool_serves_all_calls_of_a_client() -> None:
    with serving([Answer()]) as served, contextlib.closing(OpenAIClient(served.url, "served")) as client:
        for seed in range(5):
            client.complete([{"role": "user", "content": "hi"}], tools=[], sampling=Sampling(), seed=seed)
        assert (len(served.requests), served.connections) == (5, 1)


# --- waiting


def gaps(served: Served) -> list[float]:
    times = [request.time for request in served.requests]
    return [after - before for before, after in pairwise(times)]


@pytest.mark.parametrize("headers", [{"Retry-After": "0.3"}, {"retry-after-ms": "300", "Retry-After": "9"}])
def test_a_named_wait_is_honoured(headers: dict[str, str]) -> None:
    clock = time.monotonic()
    got, served = answered(Answer(status=429, headers=headers), Answer())
    assert gaps(served)[0] >= 0.3
    assert got.seconds is not None
    assert time.monotonic() - clock - got.seconds >= 0.3, "waiting is no part of the answer's time"


def test_an_absurd_wait_is_capped_and_said_at_once() -> None:
    said: list[str] = []
    patience = Patience(first_wait_seconds=0.01, longest_wait_seconds=0.05)
    with serving([Answer(status=429, headers={"Retry-After": "9999"})] * 2 + [Answer()]) as served:
        client = OpenAIClient(served.url, "served", patience=patience, say=said.append)
        with contextlib.closing(client):
            client.complete([{"role": "user", "content": "hi"}], tools=[], sampling=Sampling(), seed=5)
            assert len(said) == 1 and "9999" in said[0] and "longest_wait_seconds" in said[0]
            assert any("capped (2 times)" in note for note in client.notes())


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("-4", 0.0),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("soon", None),
        (format_datetime(NOW + timedelta(seconds=20)), 20.0),
        (format_datetime(NOW - timedelta(seconds=20)), 0.0),
        ("Wed, 21 Oct 2015 07:28:00", 0.0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("Thu, 01 Jan 2026 00:00:00 -9999", None),
    ],
)
def test_retry_after_forms(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds


def test_milliseconds_come_before_seconds() -> None:
    assert named_wait({"retry-after-ms": "1500", "retry-after": "9"}, NOW) == 1.5
    assert named_wait({"retry-after-ms": "x", "retry-after": "9"}, NOW) == 9.0


@given(st.text())
def test_retry_after_never_fails_and_is_never_negative(header: str) -> None:
    found = retry_after(header, NOW)
    assert found is None or found >= 0


@settings(derandomize=True, deadline=None)
@given(
    st.integers(0, 2**53 - 1),
    st.lists(st.one_of(st.none(), st.floats(0, 1e9)), min_size=1, max_size=30),
)
def test_waits_are_long_enough_bounded_and_never_hot(seed: int, named: Sequence[float | None]) -> None:
    patience = Patience(passing_attempts=100)
    attempts, again = Attempts(patience, seed, "s"), Attempts(patience, seed, "s")
    for number, wait in enumerate(named):
        got = attempts.wait_after(Passing("busy", wait=wait))
        assert got == again.wait_after(Passing("busy", wait=wait)), "the same request waits the same time"
        capped = min(wait or 0.0, patience.longest_wait_seconds)
        own = min(patience.first_wait_seconds * 2**number, patience.longest_backoff_seconds)
        assert max(capped, own / 2) <= got <= max(capped + patience.first_wait_seconds, own)


def test_requests_that_were_refused_together_do_not_come_back_together() -> None:
    waits = {Attempts(Patience(), seed, "s").wait_after(Passing("busy")) for seed in range(50)}
    assert len(waits) == 50


def test_malformed_answers_and_passing_trouble_have_bounds_of_their_own() -> None:
    attempts = Attempts(Patience(passing_attempts=9, malformed_attempts=2), 1, "s")
    for _ in range(5):
        attempts.wait_after(Passing("busy"))
    attempts.wait_after(Malformed("not JSON"))
    with pytest.raises(ModelError, match=r"not JSON \(2 times\)"):
        attempts.wait_after(Malformed("not JSON"))
