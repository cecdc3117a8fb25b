"""What is sent, what of it can be left out or put otherwise, and what a reply is read as."""

import contextlib
import json
import string
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model.openai import OpenAIClient
from harness.model.patience import Malformed
from harness.model.protocol import Completion, Message, Sampling
from harness.model.reading import as_logprob, read_completion
from harness.model.request import RequestForm, alternate, fold_system
from harness.prompting import parse, tools
from harness.record import Reply, clean_text
from tests.model.misbehaving import GOOD, Answer, serving

USER: Message = {"role": "user", "content": "hi"}
FULL = Sampling(temperature=0.5, max_tokens=9, logprobs=True)


def sent(form: RequestForm, messages: Sequence[Message] = (USER,), sampling: Sampling = FULL) -> dict[str, Any]:
    with serving([Answer()]) as served:
        with contextlib.closing(OpenAIClient(served.url, "m", form=form)) as client:
            client.complete(messages, tools=tools("tool_call"), sampling=sampling, seed=7)
        return served.requests[0].body


def test_a_request_holds_what_decides_the_answer() -> None:
    body = sent(RequestForm())
    assert body == {
        "model": "m",
        "messages": [USER],
        "tools": tools("tool_call"),
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 7,
        "logprobs": True,
        "return_token_ids": True,
    }
    assert not sent(RequestForm(), sampling=Sampling()).keys() & {"logprobs", "return_token_ids"}


def test_what_a_provider_wants_otherwise() -> None:
    form = RequestForm(
        max_tokens_key="max_completion_tokens",
        omit=frozenset({"temperature", "seed", "return_token_ids"}),
        chat_template_kwargs={"enable_thinking": False},
        extra_body={"top_k": 20},
    )
    body = sent(form)
    assert not body.keys() & {"temperature", "seed", "return_token_ids", "max_tokens"}
    assert (body["max_completion_tokens"], body["top_k"]) == (9, 20)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    local = "http://127.0.0.1/v1"
    assert form.notes(local) == [f"`{name}` is not sent" for name in ("return_token_ids", "seed", "temperature")]


def test_what_a_server_is_known_to_ignore_is_said() -> None:
    notes = RequestForm().notes("https://api.anthropic.com/v1/")
    assert notes == [f"`{name}` is sent, and its server is known to ignore it" for name in ("logprobs", "seed")]
    assert RequestForm().notes("http://127.0.0.1:8000/v1") == []
    dropped = RequestForm(omit=frozenset({"seed"})).notes("https://api.anthropic.com/v1")
    assert "`seed` is not sent" in dropped and not any("`seed` is sent" in note for note in dropped)


# --- order of roles

plain = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["system", "user", "assistant"]),
    st.text(string.ascii_letters, min_size=1, max_size=5),
)
call = st.just({"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function"}]})
result = st.just({"role": "tool", "tool_call_id": "c", "content": "out"})
conversations = st.lists(st.one_of(plain, call, result), max_size=12)


def said(messages: Sequence[Message]) -> str:
    return "".join(str(message["content"]).replace("\n\n", "") for message in messages)


@settings(derandomize=True, deadline=None)
@given(conversations)
def test_joining_loses_no_word_and_leaves_no_neighbours_of_one_role(messages: list[Message]) -> None:
    before = json.dumps(messages)
    made = alternate(messages)
    assert json.dumps(messages) == before, "what is recorded is not what is changed"
    assert said(made) == said(messages)
    assert alternate(made) == made
    for one, other in pairwise(made):
        if not one.get("tool_calls") and not other.get("tool_calls") and "tool" not in (one["role"], other["role"]):
            assert one["role"] != other["role"]
    kept = [message for message in messages if message.get("tool_calls") or message["role"] == "tool"]
    assert [message for message in made if message.get("tool_calls") or message["role"] == "tool"] == kept


@settings(derandomize=True, deadline=None)
@given(conversations)
def test_folding_loses_no_word_and_no_system_message_stands_first(messages: list[Message]) -> None:
    made = fold_system(messages)
    assert said(made) == said(messages)
    assert not made or made[0]["role"] != "system"
    assert fold_system(made) == made


def test_both_together_give_what_a_strict_template_takes() -> None:
    conversation: list[Message] = [
        {"role": "system", "content": "s"},
        USER,
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    body = sent(RequestForm(alternate=True, fold_system=True), conversation)
    assert [(message["role"], message["content"]) for message in body["messages"]] == [
        ("user", "s\n\nhi\n\nagain"),
        ("assistant", "a"),
        ("user", "b"),
    ]


# --- reading a reply


def read(message: dict[str, Any], choice: dict[str, Any] | None = None, **more: Any) -> Completion:
    return read_completion({"choices": [{"message": message, "finish_reason": "stop", **(choice or {})}], **more})


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart(field: str) -> None:
    got = read({"content": "say", field: "think"})
    assert (got.text, got.reasoning) == ("say", "think")


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ({"content": None}, "holds no text"),
        ({"content": ""}, "holds no text"),
        ({"content": " \n", "tool_calls": []}, "holds no text"),
        ({"content": None, "reasoning_content": "hm"}, "nothing but reasoning"),
        ({}, "holds no text"),
    ],
)
def test_a_reply_without_text_and_call_is_its_own_thing(message: dict[str, Any], names: str) -> None:
    for dialect in ("tool_call", "text"):
        reply = parse(read(message), dialect)  # type: ignore[arg-type]
        assert reply.is_unrecognised and reply.format_error is not None
        assert names.removeprefix("holds ") in reply.format_error


def test_prose_is_a_format_error_and_not_unrecognised() -> None:
    reply = parse(read({"content": "I will think."}), "tool_call")
    assert (reply.is_unrecognised, reply.format_error is None) == (False, False)


def test_parts_and_refusals_are_text() -> None:
    assert read({"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}]}).text == "ab"
    assert read({"content": None, "refusal": "I will not."}).text == "I will not."


def test_calls_are_read_as_sent() -> None:
    calls = [
        {"id": "c1", "function": {"name": "bash", "arguments": '{"command": "ls'}},
        {"function": {"name": "bash", "arguments": {"command": "ls"}}},
        {"id": 3, "function": {"name": "bash"}},
    ]
    got = read({"content": None, "tool_calls": calls}).tool_calls
    assert [(call.id, call.arguments) for call in got] == [
        ("c1", '{"command": "ls'),
        ("call_2", '{"command": "ls"}'),
        ("3", ""),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": None},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": 7}}]},
        {"choices": [{"message": {"tool_calls": "ls"}}]},
        {"choices": [{"message": {"tool_calls": [None]}}]},
        {"choices": [{"message": {"tool_calls": [{"function": "ls"}]}}]},
    ],
)
def test_what_is_no_completion_is_malformed(answer: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        read_completion(answer)


FIELDS = (
    *("choices", "message", "content", "tool_calls", "function", "name", "arguments", "id", "model", "refusal"),
    *("usage", "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens", "finish_reason"),
    *("logprobs", "logprob", "bytes", "token_ids", "prompt_token_ids", "reasoning", "system_fingerprint"),
    *("forkroll", "propensity"),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just(10**400)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(json_values, json_values, json_values, json_values)
def test_any_answer_is_read_or_malformed(message: Any, logprobs: Any, usage: Any, more: Any) -> None:
    answer = {
        **(more if isinstance(more, dict) else {}),
        "choices": [{"message": message, "logprobs": {"content": logprobs}, "token_ids": more, "forkroll": usage}],
        "usage": usage,
    }
    with contextlib.suppress(Malformed):
        reply = parse(read_completion(answer), "tool_call")
        assert Reply.model_validate_json(reply.model_dump_json()) == reply


# --- tokens


def entries(*pieces: bytes | None, logprob: float | None = -0.1) -> dict[str, Any]:
    content = [{"token": "?", "logprob": logprob, "bytes": None if piece is None else list(piece)} for piece in pieces]
    return {"logprobs": {"content": content}}


def test_bytes_are_kept_where_they_give_the_text() -> None:
    euro = "€".encode()
    got = read({"content": "a €"}, entries(b"a ", euro[:2], euro[2:], b"")).tokens
    assert got is not None and got.pieces == (b"a ", euro[:2], euro[2:], b"") and got.without_bytes == ()
    marked = read({"content": "a"}, entries(b"<think>x</think>", b"a", b"<|end|>")).tokens
    assert marked is not None and marked.pieces is not None


def test_a_token_without_bytes_is_named_and_not_guessed() -> None:
    got = read({"content": "ab"}, entries(b"a", None)).tokens
    assert got is not None
    assert (got.pieces, got.without_bytes, got.logprobs) == (None, (1,), (-0.1, -0.1))


def test_parts_of_a_character_that_are_sent_as_its_replacement_are_named() -> None:
    """vLLM's form: the bytes are those of the token's text, which stands for half a character."""
    lost = "\ufffd".encode()
    for message in ({"content": "a€"}, {"content": None, "tool_calls": [{"function": {"name": "bash"}}]}):
        got = read(message, entries(b"a", lost, lost)).tokens
        assert got is not None and (got.pieces, got.without_bytes) == (None, (1, 2))
    said = read({"content": "a\ufffd"}, entries(b"a", lost)).tokens
    assert said is not None and said.pieces == (b"a", lost)


def test_bytes_that_do_not_give_the_text_are_unknown() -> None:
    got = read({"content": "abc"}, entries(b"a", b"x")).tokens
    assert got is not None and got.pieces is None and got.without_bytes == ()


def test_ids_are_kept_where_there_is_one_for_each_score() -> None:
    two = entries(b"a", b"b")
    kept = read({"content": "ab"}, {**two, "token_ids": [5, 6]}).tokens
    shifted = read({"content": "ab"}, {**two, "token_ids": [5, 6, 7]}).tokens
    assert kept is not None and kept.ids == (5, 6)
    assert shifted is not None and shifted.ids is None


@pytest.mark.parametrize("sentinel", [None, -9999.0, float("-inf"), float("nan"), "x", True, 10**400])
def test_sentinels_are_no_numbers(sentinel: object) -> None:
    assert as_logprob(sentinel) is None


def test_prompt_ids_become_a_digest() -> None:
    one, same = read({}, prompt_token_ids=[1, 2, 3]), read({}, {"prompt_token_ids": [1, 2, 3]})
    other, none = read({}, prompt_token_ids=[12, 3]), read({}, prompt_token_ids=None)
    assert one.prompt_digest == same.prompt_digest != other.prompt_digest
    assert none.prompt_digest is None


def test_what_answers_lack_is_said() -> None:
    bare = {"model": "other", "choices": GOOD["choices"]}
    with (
        serving([Answer(status=500), Answer(), Answer(body=bare)]) as served,
        contextlib.closing(OpenAIClient(served.url, "m")) as client,
    ):
        for seed in range(2):
            client.complete([USER], tools=[], sampling=FULL, seed=seed)
        notes, facts = client.notes(), client.facts()
    assert any("counts no tokens" in note and "(1 of 2 answers)" in note for note in notes)
    assert any("log-probabilities were asked for and not given (2 of 2 answers)" in note for note in notes)
    assert (facts["answers"], facts["fingerprints"], facts["answered_as"]) == (2, ["fp-1"], ["served", "other"])
    assert facts["attempts_in_vain"] == {"HTTP 500 for model 'm'": 1}


def test_half_a_character_is_replaced_wherever_it_stands() -> None:
    call = {"id": "\ud800", "function": {"name": "b\udfff", "arguments": '{"command": "\\ud800"}'}}
    got = read({"content": "a\ud800", "reasoning": "\udc00", "tool_calls": [call]}, model="m\ud800")
    texts = [got.text, got.reasoning or "", got.model, *(f"{call.id}{call.name}" for call in got.tool_calls)]
    assert all(text == clean_text(text) and "\ufffd" in text for text in texts)
    assert json.loads(got.tool_calls[0].arguments) == {"command": "\ufffd"}
