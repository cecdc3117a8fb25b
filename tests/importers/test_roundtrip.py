"""Our record as a traj.json, imported again: actions, exit codes, outputs to the byte, errors and stop are kept."""

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.exporters.mini import Rollout, mini_document
from harness.exporters.statuses import status_of
from harness.importers.continuing import logged_scaffold, spoken_as
from harness.importers.mini import MiniImporter
from harness.importers.protocol import Document, Imported
from harness.prompting import OwnScaffold
from harness.record import (
    Action,
    Circumstances,
    Ending,
    Exit,
    Observation,
    Outcome,
    Reply,
    Spent,
    Step,
    Stop,
    Task,
    ToolCall,
    Usage,
)
from harness.scaffold.mini import MiniScaffold
from harness.scaffold.protocol import Dialect, Scaffold
from tests.importers.made import CONFIG

SCAFFOLDS: list[Scaffold] = [
    OwnScaffold("tool_call"),
    OwnScaffold("text"),
    MiniScaffold.from_config(CONFIG["mini-swe-agent-1.1"], "tool_call", source="test"),
    MiniScaffold.from_config(CONFIG["mini-swe-agent-1"], "text", source="test"),
]
TASK = Task(instance_id="t", repo="r", base_commit="c", problem_statement="Mend it.")
OURS = [stop for stop in Stop if stop not in (Stop.COST_LIMIT, Stop.BROKEN_OFF)]

texts = st.text(st.characters(codec="utf-8"), max_size=12)
commands = texts.filter(lambda text: "```" not in text and text == text.strip())
outputs = st.binary(max_size=12) | texts.map(str.encode)


@st.composite
def observations(draw: st.DrawFn, *, whole: bool) -> Observation:
    output, ended = draw(outputs), draw(st.sampled_from([end for end in Exit if end is not Exit.UNKNOWN]))
    cut = None if whole else draw(st.none() | st.integers(0, len(output)))
    return Observation(
        output=output,
        exit_code=draw(st.integers(0, 255)) if ended is Exit.EXITED else None,
        ended=ended,
        signal=draw(st.integers(1, 64)) if ended is Exit.SIGNAL else None,
        size=len(output) + (0 if cut is None else 9),
        sha256=hashlib.sha256(output).hexdigest(),
        cut_at=cut,
        characters=None if cut is None else 99,
    )


@st.composite
def replies(draw: st.DrawFn, dialect: Dialect) -> Reply:
    text = draw(texts)
    calls: tuple[ToolCall, ...] = ()
    actions: tuple[Action, ...] = ()
    if dialect == "tool_call":
        found = draw(st.lists(commands, max_size=3))
        calls = tuple(
            ToolCall(id=f"c{number}", name="bash", arguments=json.dumps({"command": one}))
            for number, one in enumerate(found)
        )
        actions = tuple(Action(command=one, call_id=f"c{number}") for number, one in enumerate(found))
        if draw(st.booleans()):
            actions = ()
    elif draw(st.booleans()):
        actions = (Action(command=draw(commands)),)
        text = f"{text}\n```bash\n{actions[0].command}\n```"
    return Reply(
        text=text,
        actions=actions,
        format_error=None if actions else draw(texts.filter(bool)),
        tool_calls=calls,
        reasoning=draw(st.none() | texts.filter(bool)),
        finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls"])),
        usage=Usage(
            input_tokens=draw(st.none() | st.integers(0, 9)), output_tokens=draw(st.none() | st.integers(0, 9))
        ),
        model=draw(texts),
    )


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[Scaffold, list[Step], Stop]:
    scaffold = draw(st.sampled_from(SCAFFOLDS))
    whole = isinstance(scaffold, MiniScaffold)  # its templates show more of a longer stream than is kept here
    steps = []
    for index in range(1, draw(st.integers(0, 4)) + 1):
        reply = draw(replies(scaffold.dialect))
        seen = [scaffold.observe(draw(observations(whole=whole)), action, timeout_s=1) for action in reply.actions]
        steps.append(_step(index, reply, seen))
    return scaffold, steps, draw(st.sampled_from(OURS))


def _step(index: int, reply: Reply, seen: list[Observation]) -> Step:
    return Step(
        index=index,
        agent="a",
        probability=1.0,
        seed=index,
        reply=reply,
        observations=tuple(seen),
        state_digest="s",
        circumstances=Circumstances(started_at="2026-01-01T00:00:00+00:00", model_seconds=0.5),
    )


def exported(scaffold: Scaffold, steps: list[Step], stop: Stop) -> str:
    submission = "patch" if stop is Stop.SUBMITTED else None
    ending = Ending(
        spent=Spent(calls=len(steps)), stop=stop, submission=submission, patch=b"", outcome=Outcome(status="unscored")
    )
    opening, tell = scaffold.opening(TASK), scaffold.step_messages
    rollout = Rollout("t", opening, steps, tell, ending, config=spoken_as(scaffold))
    return json.dumps(mini_document(rollout), indent=2)


def imported(text: str) -> Imported:
    return MiniImporter().read(Document("t", json.loads(text), ""), "a")


@settings(derandomize=True, deadline=None)
@given(rollouts())
def test_what_was_done_survives(made: tuple[Scaffold, list[Step], Stop]) -> None:
    scaffold, steps, stop = made
    base = imported(exported(*made)).base
    assert base.ending.stop in (stop, Stop.CALL_LIMIT if status_of(stop) == "LimitsExceeded" else stop)
    assert base.ending.submission == ("patch" if stop is Stop.SUBMITTED else None)
    kept = ("text", "actions", "format_error", "reasoning", "finish_reason", "usage", "model")
    for ours, theirs in zip(steps, base.steps, strict=True):
        assert {key: getattr(theirs.reply, key) for key in kept} == {key: getattr(ours.reply, key) for key in kept}
        assert theirs.observations == ours.observations
        assert theirs.circumstances.started_at == ours.circumstances.started_at
        assert theirs.messages == tuple(scaffold.step_messages(ours))
    assert base.opening == tuple(scaffold.opening(TASK))


@pytest.mark.parametrize("scaffold", SCAFFOLDS, ids=lambda scaffold: f"{scaffold.name}-{scaffold.dialect}")
def test_an_export_is_gone_on_with_in_its_own_scaffold(scaffold: Scaffold) -> None:
    source = imported(exported(scaffold, [], Stop.CALL_LIMIT)).base.source
    assert source is not None
    again = logged_scaffold(source)
    assert type(again) is type(scaffold)
    assert {**again.facts(), "config": ""} == {**scaffold.facts(), "config": ""}
