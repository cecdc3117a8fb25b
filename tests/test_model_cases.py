"""Faults that people met between harness and model server, each tried here: kinds F, L and M of the shared collection.

As in `test_bug_cases`: inputs of our own and the shared ones, and what is tested is what a user would see.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.fork_tables import quality_table
from analysis.load import load_run
from harness.errors import ModelError
from harness.model.openai import OpenAIClient
from harness.model.patience import Patience
from harness.model.protocol import Completion, Sampling
from harness.model.repeat import repeatability
from harness.prompting import SUBMIT_WORD, tools
from harness.record import Step, commands
from harness.sandbox.namespace import available
from tests.bug_cases.parts import (
    MODEL,
    Run,
    Served,
    completion,
    fence,
    make_run,
    serve,
    serve_shared,
    served_model,
    shared_case,
    tool_call,
)
from tests.model.misbehaving import Answer, serving

SUBMIT = f"echo {SUBMIT_WORD}"
ORIGINS = ("ours", "shared")
USER = {"role": "user", "content": "hi"}

whole_run = pytest.mark.skipif(available() is not None, reason=f"no namespace sandboxes: {available()}")
"""A model behind HTTP is refused without a sandbox, so these need namespaces."""


def base_of(run: Run) -> Sequence[Step]:
    (base,) = run.records().bases.values()
    return base.steps


def messages_of(served: Served) -> list[list[dict[str, Any]]]:
    return [request["messages"] for request in served.requests()]


def extends(longer: list[dict[str, Any]], shorter: list[dict[str, Any]]) -> bool:
    return longer[: len(shorter)] == shorter


# --- F 020: a malformed reply vanishes from the history

OURS_020 = [fence("echo 1"), {"content": "Let me think."}, fence("echo 2"), {"content": ""}, fence(SUBMIT)]


@whole_run
@pytest.mark.parametrize("origin", ORIGINS)
def test_020_a_bad_reply_and_its_answer_both_stay(origin: str, tmp_path: Path) -> None:
    ours = [completion(message) for message in OURS_020]
    with serve(ours) if origin == "ours" else serve_shared("020-dropped-malformed", "fence", tmp_path) as served:
        run = make_run(tmp_path, served_model(served), dialect="text", limits={"calls": 8}, forks=NEVER)
        assert run.finish() == 0
    steps, asked = base_of(run), messages_of(served)
    assert [step.index for step in steps] == list(range(1, len(steps) + 1)) and len(steps) == len(asked)
    bad = [step for step in steps if step.reply.format_error is not None]
    assert len(bad) >= 2 and any(step.reply.is_unrecognised for step in bad)
    for before, after in pairwise(asked):
        assert extends(after, before) and len(after) == len(before) + 2
    for step in bad[:-1]:
        told = asked[step.index]
        assert told[-2] == {"role": "assistant", "content": step.reply.text}
        assert told[-1] == {"role": "user", "content": step.reply.format_error}


NEVER = {"rule": "absolute", "at": [40]}
"""No base of these cases is so long."""

# --- F 022: bad arguments of a tool call poison the conversation


def bad_call(arguments: str, name: str = "bash") -> dict[str, Any]:
    return {"tool_calls": [{"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}]}


OURS_022 = [
    bad_call('{"command": "ec'),
    bad_call('"ls"'),
    tool_call("echo between"),
    bad_call("null"),
    bad_call('{"command": ["ls"]}'),
    tool_call("echo recovered"),
    bad_call('{"command": "ls"}', name="python"),
    bad_call(""),
    tool_call(SUBMIT),
]


@whole_run
@pytest.mark.parametrize("origin", ORIGINS)
def test_022_bad_arguments_are_kept_and_sent_back_as_valid_json(origin: str, tmp_path: Path) -> None:
    ours = [completion(message) for message in OURS_022]
    with serve(ours) if origin == "ours" else serve_shared("022-bad-args-poison", "tool", tmp_path) as served:
        model = served_model(served)
        run = make_run(tmp_path, model, forks=NEVER, limits={"calls": 9, "format_errors": 8})
        assert run.finish() == 0
    steps = base_of(run)
    assert "echo recovered" in commands(steps)
    for asked in messages_of(served):
        for message in asked:
            for call in message.get("tool_calls", []):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
        answered = [message["tool_call_id"] for message in asked if message["role"] == "tool"]
        called = [call["id"] for message in asked for call in message.get("tool_calls", [])]
        assert answered == called, "every call has its answer, right after it"
    raw = [call.arguments for step in steps for call in step.reply.tool_calls if step.reply.format_error is not None]
    assert any(not _is_object(arguments) for arguments in raw), "the record holds them as they were"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


# --- L 044: seed or greedy not kept


@contextlib.contextmanager
def variants(origin: str, folder: Path) -> Iterator[str]:
    if origin == "shared":
        with serve_shared("044-seed-not-kept", "tool", folder) as served:
            yield served.url
    else:
        answers = [completion(tool_call(f"echo {letter}")) for letter in "abaabab"]
        with serve(answers) as served:
            yield served.url


@pytest.mark.parametrize("origin", ORIGINS)
def test_044_repeating_is_measured(origin: str, tmp_path: Path) -> None:
    with variants(origin, tmp_path) as url, contextlib.closing(OpenAIClient(url, MODEL)) as client:
        found = repeatability(client, [USER], tools=tools("tool_call"), sampling=Sampling(), seed=3, times=8)
    assert (found.asked, len(found.variants), sum(found.variants), found.repeatable) == (8, 2, 8, False)
    assert found.first_difference is not None and "not repeatable: 2 variants in 8 requests" in found.line()


def test_044_the_same_answer_is_said_to_have_repeated_and_no_more() -> None:
    with serve([completion(fence("ls"))]) as served, contextlib.closing(OpenAIClient(served.url, MODEL)) as client:
        found = repeatability(client, [USER], tools=[], sampling=Sampling(), seed=3, times=4, at_once=2)
    assert (found.repeatable, found.variants, found.first_difference) == (True, (4,), None)
    assert found.line() == "repeated in 4 of 4 requests, 2 at once"


def test_044_ids_tell_answers_apart_where_texts_do_not() -> None:
    def answer(ids: list[int]) -> dict[str, Any]:
        content = [{"token": "?", "logprob": -1.0, "bytes": [97]} for _ in ids]
        choice = {"logprobs": {"content": content}, "token_ids": ids}
        return completion({"content": "a" * len(ids)}, choice=choice)

    with (
        serve([answer([1, 2]), answer([1, 3])]) as served,
        contextlib.closing(OpenAIClient(served.url, MODEL)) as client,
    ):
        found = repeatability(client, [USER], tools=[], sampling=Sampling(logprobs=True), seed=3, times=3)
    assert (found.variants, found.by_token_ids, found.first_difference) == ((2, 1), True, 1)


@whole_run
def test_044_what_bears_on_repeating_is_recorded_and_nothing_is_called_deterministic(tmp_path: Path) -> None:
    with serve([completion(tool_call(SUBMIT), system_fingerprint="fp-9")]) as served:
        run = make_run(tmp_path, served_model(served), forks=NEVER)
        process = run.start()
        told, _ = process.communicate(timeout=60)
        assert process.returncode == 0, told
    (step,), (request,) = base_of(run), served.requests()
    assert request["seed"] == step.seed
    assert (step.circumstances.server_epoch, step.circumstances.in_flight) == ("fp-9", 1)
    written = "".join(path.read_text() for path in run.run_folder.rglob("*.json*"))
    assert "deterministic" not in told + written


# --- L 046: scores tied to the wrong token


@pytest.mark.parametrize("origin", ORIGINS)
def test_046_a_token_without_bytes_is_named(origin: str, tmp_path: Path) -> None:
    if origin == "shared":
        (entry,) = json.loads((shared_case("046-token-bytes") / "response_chat.json").read_text())
    else:
        cent = "é".encode()
        pieces = [*(([byte]) for byte in cent), None]
        content = [{"token": "?", "logprob": -0.5, "bytes": piece} for piece in pieces]
        entry = {"content": "é!", "logprobs": {"content": content}}
    choice = {"logprobs": entry["logprobs"]}
    with (
        serve([completion({"content": entry["content"]}, choice=choice)]) as served,
        contextlib.closing(OpenAIClient(served.url, MODEL)) as client,
    ):
        got = client.complete([USER], tools=[], sampling=Sampling(logprobs=True), seed=1)
        notes = client.notes()
    count = len(entry["logprobs"]["content"])
    assert got.tokens is not None and len(got.tokens.logprobs) == count
    assert (got.tokens.pieces, got.tokens.without_bytes) == (None, (count - 1,))
    assert any("bytes of some token" in note for note in notes)


# --- M 048: 429 and 503 with Retry-After


@whole_run
def test_048_waiting_is_no_step_and_costs_the_branch_no_time(tmp_path: Path) -> None:
    refusals = [Answer(status=429, headers={"Retry-After": "1"}), Answer(status=503), Answer(status=500, body={})]
    answers = [*refusals, Answer(body=completion(tool_call(SUBMIT)))]
    with serving(answers) as served:
        served.listed = {"data": [{"id": MODEL}]}
        model = {"client": "openai", "base_url": served.url, "model": MODEL}
        run = make_run(tmp_path, model, forks=NEVER)
        assert run.finish() == 0
    (base,) = run.records().bases.values()
    (step,) = base.steps
    seen = step.circumstances
    assert (len(served.requests), seen.transport_retries, base.ending.spent.calls) == (4, 3, 1)
    assert seen.waited_seconds >= 1.0 > 0 < seen.model_seconds
    spent = seen.model_seconds + sum(seen.action_seconds)
    assert base.ending.spent.seconds == pytest.approx(spent), "waiting is not charged"


@pytest.mark.parametrize(("script", "least"), [("script.json", (3.0, 2.0)), ("script_date_and_zero.json", ())])
def test_048_the_shared_scripts(script: str, least: tuple[float, ...], tmp_path: Path) -> None:
    entries = json.loads((shared_case("048-retry-after") / script).read_text())
    refusals = [Answer(status=e["status"], headers=e["headers"], body=e["body"]) for e in entries if "headers" in e]
    patience = Patience(longest_wait_seconds=4.0, first_wait_seconds=0.05)
    with (
        serving([*refusals, Answer()]) as served,
        contextlib.closing(OpenAIClient(served.url, "served", patience=patience)) as client,
    ):
        got = client.complete([USER], tools=[], sampling=Sampling(), seed=1)
    times = [request.time for request in served.requests]
    waits = [after - before for before, after in pairwise(times)]
    assert got.retries == len(refusals)
    assert all(wait >= named for wait, named in zip(waits, least, strict=False))
    assert min(waits) >= 0.025, "a date in the past and zero do not make a hot loop"


# --- M 050: the connection is cut in mid-reply


@whole_run
@pytest.mark.parametrize("origin", ORIGINS)
def test_050_half_a_reply_is_thrown_away_and_asked_again(origin: str, tmp_path: Path) -> None:
    if origin == "ours":
        whole = completion(fence("touch half_a_command_ran\n" + "# more\n" * 200))
        first = [Answer(body=whole, cut=True)]
    else:
        entry = json.loads((shared_case("050-cut-stream") / "script.json").read_text())[0]
        first = [Answer(body=completion({"content": entry["content"]}), cut=True)]
    with serving([*first, Answer(body=completion(fence(SUBMIT)))]) as served:
        served.listed = {"data": [{"id": MODEL}]}
        model = {"client": "openai", "base_url": served.url, "model": MODEL}
        run = make_run(tmp_path, model, dialect="text", forks=NEVER)
        assert run.finish() == 0
    (step,) = base_of(run)
    assert commands([step]) == [SUBMIT] and step.circumstances.transport_retries == 1
    (base,) = run.records().bases.values()
    assert base.ending.patch == b"", "nothing of the cut reply was run"
    assert json.dumps(served.requests[0].body) == json.dumps(served.requests[1].body)


# --- M 052: the history is rewritten

OURS_052 = [
    {"content": "<think>first</think>\n\n```bash\necho 1\n```\n"},
    {"content": "```bash\necho 2\n```", "reasoning_content": "second"},
    fence("echo 3"),
    fence(SUBMIT),
]


@whole_run
@pytest.mark.parametrize("origin", ORIGINS)
def test_052_the_fork_sends_what_the_base_sent(origin: str, tmp_path: Path) -> None:
    ours = [completion(message) for message in OURS_052]
    with serve(ours) if origin == "ours" else serve_shared("052-rewritten-history", "fence", tmp_path) as served:
        run = make_run(
            tmp_path, served_model(served), dialect="text", limits={"calls": 4},
            arms=["control", "swap"], forks={"rule": "absolute", "at": [3]},
        )  # fmt: skip
        assert run.finish() == 0
    found = run.records()
    (base,), branches = found.bases.values(), list(found.branches.values())
    asked = [json.dumps(messages) for messages in messages_of(served)]
    at_fork = asked[2]
    later = asked[len(base.steps) :]
    assert len(branches) == 2 and later.count(at_fork) == 2, "byte for byte, in every arm"
    digests = {branch.steps[0].request_digest for branch in branches}
    assert digests == {base.steps[2].request_digest}
    assert "second" not in at_fork and "now the source" not in at_fork, "reasoning is kept and never sent back"
    assert base.steps[1].reply.reasoning in ("second", "now the source")
    assert "think>" in at_fork, "what stands in the text stays in the text"


def with_prompt_ids(*numbers: int) -> dict[str, Any]:
    return completion(tool_call("ls"), prompt_token_ids=list(numbers))


@whole_run
@pytest.mark.parametrize(("second", "equal"), [((1, 2), "1/1 (100%)"), ((1, 3), "0/1 (0.0%)")])
def test_052_prompts_that_a_template_made_otherwise_are_reported(
    second: tuple[int, int], equal: str, tmp_path: Path
) -> None:
    """One call a rollout: the base's only request is the one at the fork."""
    with serve([with_prompt_ids(1, 2), with_prompt_ids(*second)]) as served:
        run = make_run(
            tmp_path, served_model(served), limits={"calls": 1}, forks={"rule": "absolute", "at": [1]},
            arms=["control", "swap"],
        )  # fmt: skip
        assert run.finish() == 0
    rows = {row[0].text: row[1].text for row in quality_table(load_run(run.run_folder)).rows}
    assert rows["first requests equal to the base's"] == "2/2 (100%)"
    assert rows["first prompts equal to the base's, by token ids"] == equal, "of the base's own model"
    assert rows["replies with neither text nor a tool call"] == "0/3 (0.0%)"


# --- the key


KEY = "sk-test/4f9a+Zq0"


@whole_run
@pytest.mark.parametrize("how", ["api_key_env", "api_key_file"])
def test_a_key_is_nowhere_but_in_the_request(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a server that echoes it in refusals, headers, texts, calls, names and reasons."""
    monkeypatch.setenv("MODEL_CASES_KEY", KEY)
    (tmp_path / "key").write_text(KEY + "\n")
    (tmp_path / "key").chmod(0o644)
    call = {**tool_call("echo AUTHORIZATION"), "content": "I saw AUTHORIZATION", "reasoning_content": "AUTHORIZATION"}
    tokens = [{"token": "?", "logprob": -1.0, "bytes": list(KEY.encode())}]
    told = completion(call, system_fingerprint="AUTHORIZATION", choice={"logprobs": {"content": tokens}})
    answers = [
        Answer(status=503, body={"error": {"message": "busy, AUTHORIZATION"}}, echo=True),
        Answer(body={**told, "model": "AUTHORIZATION"}, echo=True),
        Answer(
            status=400, body={"error": {"message": "x" * 590 + "AUTHORIZATION", "code": "AUTHORIZATION"}}, echo=True
        ),
        Answer(status=302, headers={"Location": f"http://127.0.0.1:9/?key={KEY}"}, body=b"AUTHORIZATION", echo=True),
        Answer(body=completion(tool_call(SUBMIT)), echo=True),
    ]
    with serving(answers) as served:
        served.listed = {"data": [{"id": MODEL}]}
        key = {"api_key_env": "MODEL_CASES_KEY"} if how == "api_key_env" else {"api_key_file": str(tmp_path / "key")}
        model = {"client": "openai", "base_url": served.url, "model": MODEL, **key}
        run = make_run(tmp_path, model, forks=NEVER, retries=3, sampling={"logprobs": True})
        process = run.start()
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert {request.headers["authorization"] for request in served.requests} == {f"Bearer {KEY}"}
    failures = run.records().failures
    assert len(failures) == 2 and all("[key]" in failure.message for failure in failures)
    shown = [run.tell(command).stdout for command in ("status", "show", "tables", "export")]
    held = [path.read_bytes() for path in run.run_folder.rglob("*") if path.is_file()]
    spelled = json.dumps(list(KEY.encode()), separators=(",", ":")).encode()
    for text in [said.encode(), *shown, *held]:
        for form in (KEY.encode(), KEY.replace("/", "\\/").encode(), spelled):
            assert form not in text
        assert KEY[:12].encode() not in text, "no half of it either"
    assert "the server echoed the key" in said
    assert ("can be read by others" in said) == (how == "api_key_file")


# --- before the first call


def refusal_of(run: Run, *overrides: str) -> str:
    """What a run says that ends before anything is written."""
    process = run.start(*overrides)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 2, told
    assert not run.run_folder.exists() or not any(path.is_file() for path in run.run_folder.rglob("*"))
    assert len(told.strip().splitlines()) == 1 and "Traceback" not in told
    return told


def http_model(url: str, **more: Any) -> dict[str, Any]:
    return {"client": "openai", "base_url": url, "model": MODEL, **more}


@whole_run
@pytest.mark.parametrize(
    ("listed", "counts", "overrides", "says"),
    [
        ({"data": [{"id": "b"}, {"id": "a"}]}, None, [], "does not serve 'mock'; it serves: a, b"),
        ({"data": None}, None, [], "it serves: nothing"),
        ({"data": [{"id": MODEL, "max_model_len": 1000}]}, 100, [], "`sampling.max_tokens` is 2048"),
        ({"data": [{"id": MODEL, "max_model_len": 3000}]}, 953, [], "has 953 tokens"),
        ({"data": [{"id": MODEL}]}, 953, ["models.a.context=3000"], "does not fit the context of 3000"),
        ({"data": [{"id": MODEL, "meta": {"n_ctx": 3000}}]}, 953, [], "does not fit the context of 3000"),
    ],
)
def test_what_cannot_work_is_found_before_the_first_call(
    listed: object, counts: int | None, overrides: list[str], says: str, tmp_path: Path
) -> None:
    with serving([Answer()]) as served:
        served.listed, served.tokenized = listed, counts
        told = refusal_of(make_run(tmp_path, http_model(served.url)), *overrides)
    assert says in told and not served.completions()


@whole_run
def test_a_server_that_is_not_there_or_lists_nothing_is_found_before_the_first_call(tmp_path: Path) -> None:
    assert "no answer from http://127.0.0.1:9/v1" in refusal_of(make_run(tmp_path, http_model("http://127.0.0.1:9/v1")))
    with serving([Answer(status=404, body={})]) as served:
        served.listed = None
        assert "mostly ends in /v1" in refusal_of(make_run(tmp_path, http_model(served.url)))


@whole_run
def test_what_was_not_checked_is_said_and_recorded(tmp_path: Path) -> None:
    with serving([Answer(body=completion(tool_call(SUBMIT)))]) as served:
        served.listed = {"data": [{"id": MODEL}]}
        run = make_run(tmp_path, http_model(served.url, omit=["seed"]), forks=NEVER)
        process = run.start("models.b.context=3000")
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 0, told
    (session,) = json.loads((run.run_folder / "manifest.json").read_text())["sessions"]
    for note in (
        "model 'a': `seed` is not sent",
        "model 'a': its context length is not known (set `models.a.context`): not checked",
        "model 'b': its server counts no prompt tokens: openings are not checked for length",
    ):
        assert f"note: {note}" in told and note in session["degraded"]
    assert session["models_in_use"]["a"]["answers"] == 1
    assert "seed" not in served.requests[0].body


@whole_run
def test_a_rerun_finds_a_model_that_is_no_longer_served(tmp_path: Path) -> None:
    with serving([Answer(body=completion(tool_call(SUBMIT)))]) as served:
        served.listed = {"data": [{"id": MODEL}]}
        run = make_run(tmp_path, http_model(served.url), forks=NEVER)
        assert run.finish() == 0
        (base,) = run.records().bases.values()
        assert run.tell("rerun", base.id).returncode == 0
        served.listed = {"data": [{"id": "other"}]}
        told = run.tell("rerun", base.id)
    assert told.returncode == 2 and b"it serves: other" in told.stderr


# --- a server that does not read tool calls


@whole_run
def test_a_wrong_tool_parser_stops_the_run(tmp_path: Path) -> None:
    unread = completion({"content": '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'})
    with serve([unread]) as served:
        run = make_run(tmp_path, served_model(served), tasks={"set": "pocket", "count": 6})
        process = run.start()
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 4, told
    last = told.strip().splitlines()[-1]
    assert "model 'a' made no tool call in any of its 9 replies, and format errors ended 3 rollouts" in last
    assert "--enable-auto-tool-choice" in last and "dialect: text" in last
    assert len(run.records().bases) == 3


@whole_run
def test_a_model_that_writes_broken_calls_is_no_wrong_parser(tmp_path: Path) -> None:
    with serve([completion(bad_call('{"command": "l'))]) as served:
        run = make_run(tmp_path, served_model(served), tasks={"set": "pocket", "count": 4}, forks=NEVER)
        assert run.finish() == 0
    assert len(run.records().bases) == 4


@whole_run
def test_the_brake_can_be_taken_off(tmp_path: Path) -> None:
    with serve([completion({"content": "Hm."})]) as served:
        run = make_run(tmp_path, served_model(served), tasks={"set": "pocket", "count": 4}, forks=NEVER)
        assert run.finish("limits.run.rollouts_without_a_call=null") == 0
    assert len(run.records().bases) == 4


@whole_run
def test_one_such_rollout_is_a_note(tmp_path: Path) -> None:
    with serve([completion({"content": "Hm."})]) as served:
        run = make_run(tmp_path, served_model(served), forks=NEVER)
        process = run.start()
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 0, told
    (session,) = json.loads((run.run_folder / "manifest.json").read_text())["sessions"]
    assert any("made no tool call in any of its 3 replies" in note for note in session["degraded"])


# --- what a study says reaches the client


@whole_run
def test_one_family_has_one_cap(tmp_path: Path) -> None:
    """Two models at one address, the lower cap holds for both; each step says how many were in flight."""
    with serving([Answer(body=completion(tool_call(SUBMIT)), delay_s=0.05)]) as served:
        served.listed = {"data": [{"id": MODEL}]}
        run = make_run(
            tmp_path, http_model(served.url, concurrency=2), workers=8, tasks={"set": "pocket", "count": 6},
            directions={"up": {"base": "a", "swap": "b"}, "down": {"base": "b", "swap": "a"}}, forks=NEVER,
        )  # fmt: skip
        assert run.finish("models.b.concurrency=5") == 0
    assert len(served.requests) == 12 and served.peak <= 2
    flying = [step.circumstances.in_flight for base in run.records().bases.values() for step in base.steps]
    assert set(flying) == {1, 2}


@whole_run
def test_a_run_of_refusals_ends_with_what_to_set(tmp_path: Path) -> None:
    body = {"error": {"message": "Conversation roles must alternate user/assistant/user/assistant/..."}}
    with serving([Answer(status=400, body=body)]) as served:
        served.listed = {"data": [{"id": MODEL}]}
        run = make_run(tmp_path, http_model(served.url), tasks={"set": "pocket", "count": 13})
        process = run.start()
        told, _ = process.communicate(timeout=120)
    assert process.returncode == 4
    assert "12 cells in a row failed" in told and "set `roles: alternate`" in told.strip().splitlines()[-1]


@whole_run
def test_patience_is_the_study_s(tmp_path: Path) -> None:
    with serving([Answer(status=503)]) as served:
        served.listed = {"data": [{"id": MODEL}]}
        run = make_run(tmp_path, http_model(served.url, attempts=2), retries=0)
        assert run.finish() == 4
    (failure,) = run.records().failures
    assert len(served.requests) == 2 and (failure.side, "(2 attempts)" in failure.message) == ("model", True)
    assert not run.records().bases, "an outage is no outcome"


# --- strict order of roles


def ask_strict(url: str, folder: Path, **form: Any) -> Completion:
    from harness.model.request import RequestForm

    with contextlib.closing(OpenAIClient(url, MODEL, form=RequestForm(**form))) as client:
        messages = [{"role": "system", "content": "s"}, USER, USER, {"role": "assistant", "content": "a"}, USER]
        return client.complete(messages, tools=[], sampling=Sampling(), seed=1)


def test_the_shared_mock_with_strict_roles(tmp_path: Path) -> None:
    with serve_shared("044-seed-not-kept", "fence", tmp_path, "--strict-roles") as served:
        with pytest.raises(ModelError, match="roles: alternate"):
            ask_strict(served.url, tmp_path)
        assert "echo" in ask_strict(served.url, tmp_path, alternate=True).text
        assert "echo" in ask_strict(served.url, tmp_path, alternate=True, fold_system=True).text


@whole_run
@pytest.mark.parametrize("style", ["tool", "fence"])
def test_our_own_conversations_pass_strict_roles(style: str, tmp_path: Path) -> None:
    case = "022-bad-args-poison" if style == "tool" else "020-dropped-malformed"
    dialect = "tool_call" if style == "tool" else "text"
    with serve_shared(case, style, tmp_path, "--strict-roles") as served:
        run = make_run(
            tmp_path, served_model(served), dialect=dialect, forks=NEVER, limits={"calls": 6, "format_errors": 9}
        )
        assert run.finish() == 0, sys.version
    assert not run.records().failures and len(served.requests()) == 6
