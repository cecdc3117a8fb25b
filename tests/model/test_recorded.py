"""A cassette gives back what was recorded, byte for byte, and nothing else: a miss is a miss."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import load_study
from harness.errors import ConfigError, ContextOverflow, NotRecorded
from harness.journal import Records, RunFolder
from harness.model.digest import RequestDigest, request_digest
from harness.model.protocol import Completion, Message, Said, Sampling
from harness.model.recorded import RecordedClient, cassette_of
from harness.model.simulated.process import SimulatedServer
from harness.prompting import Conversation, OwnScaffold, parse
from harness.record import (
    Circumstances,
    Failure,
    Provenance,
    Reply,
    Step,
    Stop,
    Task,
    Tokens,
    ToolCall,
    Trajectory,
    Usage,
    seed_for,
)
from harness.run import Finished, run_study
from harness.sandbox.namespace import available
from harness.scaffold.protocol import Dialect
from tests.made import make_base, make_ending

FORKROLL = Path(sys.executable).with_name("forkroll")
TASK = Task(instance_id="t", repo="r", base_commit="c", problem_statement="It breaks.\n")
SAMPLING = Sampling(temperature=0.5, max_tokens=64, logprobs=True)
DIALECTS: tuple[Dialect, ...] = ("tool_call", "text")

texts = st.text(max_size=12)
calls = st.builds(ToolCall, id=texts, name=st.sampled_from(["bash", "sh"]), arguments=texts)
messages = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts})
numbers = st.one_of(st.none(), st.floats(-50, 0, allow_nan=False))


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    """Any completion that a server can send."""
    pieces = draw(st.lists(st.binary(max_size=4), max_size=5))
    logged = Tokens(
        ids=draw(st.one_of(st.none(), st.just(tuple(range(len(pieces)))))),
        logprobs=tuple(draw(st.lists(numbers, min_size=len(pieces), max_size=len(pieces)))),
        pieces=draw(st.sampled_from([None, tuple(pieces)])),
    )
    command = json.dumps({"command": draw(texts)})
    readable = st.just(ToolCall(id="1", name="bash", arguments=command))
    counts = st.none() | st.integers(0, 9)
    return Completion(
        text=draw(st.one_of(texts, st.just(f"n\n```bash\n{command}\n```"))),
        tool_calls=tuple(draw(st.lists(st.one_of(calls, readable), max_size=2))),
        finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls"])),
        usage=Usage(input_tokens=draw(counts), output_tokens=draw(counts)),
        model=draw(texts),
        reasoning=draw(st.none() | st.text(min_size=1, max_size=8)),
        tokens=draw(st.sampled_from([None, logged])),
        prompt_digest=draw(st.none() | texts),
        propensity=draw(st.none() | st.floats(0, 1)),
    )


def step_of(reply: Reply, index: int = 1, *, request: str | None = "d", seed: int = 1, agent: str = "a") -> Step:
    return Step(
        index=index,
        agent=agent,
        probability=1,
        seed=seed,
        reply=reply,
        observations=(),
        request_digest=request,
        state_digest=None,
        circumstances=Circumstances(started_at="", model_seconds=0, prompt_digest="p"),
    )


def said(text: str) -> Reply:
    return Reply(text=text, actions=(), finish_reason="stop", usage=Usage(), model="m")


def base_of(*steps: Step, name: str = "t:a", **ending: Any) -> Trajectory:
    made = make_base([])
    return made.model_copy(update={"id": name, "steps": steps, "ending": make_ending(None).model_copy(update=ending)})


def records_of(*bases: Trajectory, failures: Sequence[Failure] = ()) -> Records:
    return Records(bases={base.id: base for base in bases}, failures=list(failures))


# --- the name of a request


@given(st.lists(st.lists(messages, max_size=3), max_size=4))
@settings(derandomize=True, deadline=None)
def test_a_digest_grown_with_the_conversation_is_that_of_the_whole_list(parts: list[list[Message]]) -> None:
    grown = RequestDigest()
    for part in parts:
        grown.add(part)
    whole = [message for part in parts for message in part]
    assert grown.of([{"x": 1}], SAMPLING) == request_digest(whole, [{"x": 1}], SAMPLING)


@given(st.lists(completions(), max_size=4), st.sampled_from(DIALECTS))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_the_agent_and_the_client_name_a_request_alike(replies: list[Completion], dialect: Dialect) -> None:
    scaffold, history = OwnScaffold(dialect), []
    conversation = Conversation(TASK, scaffold)
    for number, completion in enumerate(replies, 1):
        history.append(step_of(parse(completion, dialect), number))
        sent = conversation.follow(TASK, history)
        named = conversation.request_digest(scaffold.tools(), SAMPLING)
        assert named == request_digest(json.loads(json.dumps(list(sent))), scaffold.tools(), SAMPLING)


@given(st.lists(messages, min_size=1, max_size=4), st.data())
@settings(derandomize=True, deadline=None)
def test_whatever_differs_has_another_name(sent: list[Message], data: st.DataObject) -> None:
    one = request_digest(sent, [], SAMPLING)
    at = data.draw(st.integers(0, len(sent) - 1))
    changed = [*sent[:at], {**sent[at], "content": sent[at]["content"] + "x"}, *sent[at + 1 :]]
    others = [
        request_digest(changed, [], SAMPLING),
        request_digest(sent[:-1], [], SAMPLING),
        request_digest(sent, [{"type": "function"}], SAMPLING),
        request_digest(sent, [], replace(SAMPLING, temperature=0.6)),
        request_digest(sent, [], replace(SAMPLING, max_tokens=65)),
        request_digest(sent, [], replace(SAMPLING, logprobs=False)),
    ]
    assert one not in others


# --- one call


@given(completions(), st.sampled_from(DIALECTS))
@settings(derandomize=True, deadline=None)
def test_a_recorded_completion_parses_to_the_equal_reply(completion: Completion, dialect: Dialect) -> None:
    reply, asked = parse(completion, dialect), [{"role": "user", "content": "u"}]
    step = step_of(reply, request=request_digest(asked, [], SAMPLING), seed=9)
    kept = Step.model_validate_json(step.model_dump_json())  # as it comes back from disk
    client = RecordedClient(cassette_of(records_of(base_of(kept)), "run"), "a")
    again = client.complete(asked, tools=[], sampling=SAMPLING, seed=9)
    assert parse(again, dialect) == reply
    assert again.prompt_digest == "p"
    assert (again.server_epoch, again.cached_prompt_tokens, again.in_flight) == (None, None, None)


ASKED: list[Message] = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
NAME = request_digest(ASKED, [], SAMPLING)


def client_of(records: Records, model: str = "a") -> RecordedClient:
    return RecordedClient(cassette_of(records, "runs/x"), model)


def ask(client: RecordedClient, sampling: Sampling = SAMPLING, seed: int = 1, sent: list[Message] = ASKED) -> str:
    return client.complete(sent, tools=[], sampling=sampling, seed=seed).text


def test_what_is_not_recorded_is_refused_by_name() -> None:
    client = client_of(records_of(base_of(step_of(said("yes"), 2, request=NAME))))
    assert ask(client) == "yes"
    named = rf"not recorded in runs/x: request {NAME[:12]} of model 'a' \(step 2, by the replies before it\); nothing"
    with pytest.raises(NotRecorded, match=named):
        ask(client, seed=2)
    changed = request_digest(ASKED, [], Sampling())[:12]
    with pytest.raises(NotRecorded, match=rf"request {changed} .*; t:a step 2 was recorded with another .*{NAME[:12]}"):
        ask(client, Sampling())
    with pytest.raises(NotRecorded, match=r"of model 'a' \(step 1,"):
        ask(client, sent=ASKED[:1])


def test_another_models_answer_is_no_answer() -> None:
    records = records_of(base_of(step_of(said("yes"), request=NAME, agent="b")))
    assert ask(client_of(records, "b")) == "yes"
    with pytest.raises(NotRecorded, match="model 'a'"):
        ask(client_of(records, "a"))


def test_a_step_whose_request_is_not_known_answers_nothing() -> None:
    with pytest.raises(NotRecorded, match="nothing with its seed"):
        ask(client_of(records_of(base_of(step_of(said("yes"), request=None)))))


def test_a_call_after_the_recorded_end_says_how_that_rollout_ended() -> None:
    base = base_of(step_of(said("yes"), request=NAME), stop=Stop.TIME_LIMIT)
    with pytest.raises(NotRecorded, match="t:a ended after step 1 by time_limit"):
        ask(client_of(records_of(base)), seed=seed_for(base.seed, 2))


def test_records_that_contradict_each_other_are_refused_by_name() -> None:
    one, other = step_of(said("yes"), request=NAME), step_of(said("no"), request=NAME)
    with pytest.raises(ConfigError, match=r"t:a step 1 and u:a step 1 answer one request differently"):
        cassette_of(records_of(base_of(one), base_of(other, name="u:a")), "runs/x")
    assert ask(client_of(records_of(base_of(one), base_of(one, name="u:a")))) == "yes"


def failed(text: str, attempt: int) -> Failure:
    steps = (step_of(said(text), request=NAME),)
    return Failure(id="t:a", side="model", message="-", steps=steps, provenance=Provenance(attempt=attempt))


def test_steps_of_failed_attempts_are_answers_where_the_cell_has_no_record() -> None:
    assert ask(client_of(records_of(failures=[failed("no", 1)]))) == "no"
    made_good = records_of(base_of(step_of(said("yes"), request=NAME)), failures=[failed("no", 1)])
    assert ask(client_of(made_good)) == "yes"


def test_failed_attempts_that_went_two_ways_are_no_record_of_either() -> None:
    client = client_of(records_of(failures=[failed("no", 1), failed("yes", 2)]))
    with pytest.raises(NotRecorded, match=r"in two ways: t:a, failed attempt 1, step 1 and t:a, failed attempt 2,"):
        ask(client)


def test_a_full_context_is_full_again_for_that_request_only() -> None:
    base = base_of(step_of(said("yes"), request="other"), stop=Stop.CONTEXT_FULL, refused_request=NAME)
    client = client_of(records_of(base))
    with pytest.raises(ContextOverflow, match="t:a step 2"):
        ask(client, seed=seed_for(base.seed, 2))
    with pytest.raises(NotRecorded, match="t:a step 2 was recorded with another request"):
        ask(client, Sampling(), seed=seed_for(base.seed, 2))


def test_records_know_no_probability_of_what_was_not_said() -> None:
    scored = client_of(records_of()).score(ASKED, Said("", "x"), tools=[])
    assert (scored.logprob, scored.how) == (None, None)
    assert scored.why


# --- a whole study


def run(source: Path, folder: Path, *overrides: str, recorded: Path | None = None) -> tuple[Finished, list[str]]:
    told: list[str] = []
    done = run_study(
        str(source),
        overrides,
        folder=folder,
        force_new=False,
        allow_unsandboxed=False,
        say=told.append,
        recorded=recorded,
    )
    return done, told


def exported(folder: Path) -> bytes:
    return RunFolder(folder).export().read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a study and its finished run. The study's server is gone: whatever is run now is run offline."""
    if (why := available()) is not None:
        pytest.skip(f"no namespace sandboxes: {why}")
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORKROLL_CACHE", str(folder / "cache"))
        arguments = ["--models", "small,large", "--set", "small.format_error_rate=0.6", "--max-model-len", "2500"]
        with SimulatedServer(arguments) as server:
            models = {
                name: {"client": "openai", "base_url": server.base_url, "model": name} for name in ("small", "large")
            }
            study = {
                "name": "s",
                "seed": 7,
                "tasks": {"set": "pocket", "count": 2},
                "sandbox": "namespace",
                "models": models,
                "directions": {"up": {"base": "small", "swap": "large"}, "down": {"base": "large", "swap": "small"}},
                "forks": {"rule": "absolute", "at": [3]},
                "replicates": 1,
                "limits": {"calls": 9},
                "sampling": {"logprobs": True},
                "workers": 2,
                "retries": 3,
            }
            (folder / "s.yaml").write_text(json.dumps(study))
            assert run(folder / "s.yaml", folder / "run")[0].exit_code == 0
        yield folder


def test_the_study_ends_in_every_way_that_a_model_can_bring_about(place: Path) -> None:
    records = RunFolder(place / "run").records()
    for finished in (records.bases, records.branches):
        stops = {record.ending.stop for record in finished.values()}
        assert {Stop.SUBMITTED, Stop.CONTEXT_FULL, Stop.FORMAT_ERRORS} <= stops
    assert Stop.CALL_LIMIT in {branch.ending.stop for branch in records.branches.values()}


def test_a_study_is_run_again_offline_to_the_same_bytes(place: Path) -> None:
    done, told = run(place / "s.yaml", place / "again", recorded=place / "run")
    assert done.exit_code == 0
    assert f"note: models answer from the records of {place / 'run'}; no server is asked" in told
    assert exported(place / "again") == exported(place / "run")
    (session,) = RunFolder(place / "again").manifest()["sessions"]
    assert {facts["client"] for facts in session["models"].values()} == {"recorded"}
    assert "--recorded" in done.command


def test_a_run_made_from_records_answers_like_the_first(place: Path) -> None:
    run(place / "s.yaml", place / "second", recorded=place / "run")
    assert run(place / "s.yaml", place / "third", recorded=place / "second")[0].exit_code == 0
    assert exported(place / "third") == exported(place / "run")


def test_a_run_folders_own_study_file_will_do(place: Path) -> None:
    done, _ = run(place / "run" / "study.yaml", place / "own", "workers=4", recorded=place / "run")
    assert (done.exit_code, exported(place / "own")) == (0, exported(place / "run"))


def test_what_reaches_beyond_the_records_fails_by_name_and_nothing_else_does(place: Path) -> None:
    wide = ["tasks.count=10", "replicates=2"]
    done, told = run(place / "s.yaml", place / "wide", *wide, recorded=place / "run")
    assert done.exit_code == 4
    records, before = RunFolder(place / "wide").records(), RunFolder(place / "run").records()
    assert (records.bases.keys(), records.branches.keys()) == (before.bases.keys(), before.branches.keys())
    attempts = Counter(failure.id for failure in records.failures)
    assert len(attempts) == 16 + 8  # bases of 8 further tasks, second replicates of the 8 arms
    assert set(attempts.values()) == {1}, "a miss was asked again"
    assert all(f"not recorded in {place / 'run'}: request" in failure.message for failure in records.failures)
    assert any("`replicates` 1, this study has 2" in line for line in told)


def test_another_sampling_is_not_what_was_recorded(place: Path) -> None:
    done, told = run(place / "s.yaml", place / "warm", "sampling.temperature=0.5", recorded=place / "run")
    failures = RunFolder(place / "warm").records().failures
    assert (done.exit_code, len(failures)) == (4, 4)
    assert all("step 1 was recorded with another request" in failure.message for failure in failures)
    assert any("`sampling.temperature` 0.0" in line for line in told)


def test_a_recorded_model_in_a_study(place: Path) -> None:
    models = [
        f"models.{name}={{client: recorded, run: '{place / 'run'}', model: {name}}}" for name in ("small", "large")
    ]
    done, _ = run(place / "s.yaml", place / "named", *models)
    assert (done.exit_code, exported(place / "named")) == (0, exported(place / "run"))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("{client: recorded, run: nowhere, model: small}", "nowhere: not a run folder"),
        ("{client: recorded, run: RUN, model: big}", "has no steps by 'big'; it has small, large"),
        ("{client: recorded, run: RUN}", "`models.small.model` is missing"),
    ],
)
def test_a_recorded_model_that_there_is_not(place: Path, model: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        run(place / "s.yaml", place / "none", f"models.small={model.replace('RUN', str(place / 'run'))}")
    assert not (place / "none" / "study.yaml").exists()


def test_no_run_answers_for_itself(place: Path) -> None:
    with pytest.raises(ConfigError, match="cannot answer for itself; name another folder"):
        run(place / "s.yaml", place / "run", recorded=place / "run")


def test_the_command_line_says_so_in_one_line_and_writes_nothing(place: Path) -> None:
    for source, says in (("run", "cannot answer for itself"), ("nowhere", "nowhere: not a run folder")):
        command = [str(FORKROLL), "run", "s.yaml", "--run", "run", "--recorded", source]
        told = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
        assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1)
        assert says in told.stderr


def test_the_folder_of_an_offline_run_is_beside_the_recorded_one(place: Path) -> None:
    command = [str(FORKROLL), "run", "s.yaml", "--recorded", "run"]
    told = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    assert exported(place / "runs" / "s-recorded") == exported(place / "run")


def test_a_real_models_commands_are_no_tamer_for_being_recorded(place: Path) -> None:
    scripted = [f"models.{name}={{client: scripted, commands: [ls]}}" for name in ("small", "large")]
    with pytest.raises(ConfigError, match="'small' would run commands of its own choice"):
        run(place / "s.yaml", place / "bare", "sandbox=local", *scripted, recorded=place / "run")
    named = [f"models.{name}={{client: recorded, run: '{place / 'run'}', model: small}}" for name in ("small", "large")]
    with pytest.raises(ConfigError, match="'small' would run commands of its own choice"):
        run(place / "s.yaml", place / "bare", "sandbox=local", *named)


def test_a_run_without_any_of_the_models_is_refused(place: Path) -> None:
    renamed = json.loads((place / "s.yaml").read_text())
    renamed["models"] = {"x": renamed["models"]["small"]}
    renamed["directions"] = {"up": {"base": "x", "swap": "x"}}
    (place / "x.yaml").write_text(json.dumps(renamed))
    assert load_study(str(place / "x.yaml")).name == "s"
    with pytest.raises(ConfigError, match="no steps by x; it has small, large"):
        run(place / "x.yaml", place / "x", recorded=place / "run")


def test_records_of_another_schema_are_refused(place: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "records").mkdir(parents=True)
    (old / "study.yaml").write_text((place / "run" / "study.yaml").read_text())
    (old / "manifest.json").write_text('{"schema": 2}')
    with pytest.raises(Exception, match="schema is not"):
        run(place / "s.yaml", place / "old", recorded=old)
