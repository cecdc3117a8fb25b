"""Parity with mini-SWE-agent's own functions, one rule at a time, over whatever replies and outputs there may be."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model.protocol import Completion
from harness.record import Action, Exit, Observation, ToolCall, Usage
from harness.scaffold.mini import SUBMIT_WORD, MiniScaffold
from harness.scaffold.protocol import Dialect
from tests.scaffold.mini_side import Player, configuration
from tests.scaffold.scripts import TEXT

from minisweagent.environments.docker import DockerEnvironment  # isort: skip
from minisweagent.exceptions import FormatError, Submitted  # isort: skip

PROPERTY = settings(derandomize=True, deadline=None, max_examples=200)
FINISHES = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])
NAMES = st.sampled_from(["bash", "python", "", "it's"])
NOT_TEXT = st.none() | st.booleans() | st.integers() | st.lists(st.text(max_size=3), max_size=2)
OBJECTS = st.dictionaries(st.sampled_from(["command", "cmd", ""]), st.text(max_size=8), max_size=2)
ARGUMENTS = st.one_of(
    OBJECTS.map(json.dumps),
    OBJECTS.map(lambda held: json.dumps(held)[:-1]),
    NOT_TEXT.map(json.dumps),
    st.text(max_size=12),
)
PIECES = [
    "```",
    "mswea_bash_command",
    "\n",
    "<mswea_bash_command>",
    "</mswea_bash_command>",
    " ls ",
    "é",
    "```\n",
    "bash",
]
OUTPUTS = st.lists(
    st.sampled_from([SUBMIT_WORD, "\n", "\r", "\r\n", " ", "\t", "\f", "\x1c", "\x85", "\u2028", "a", "é", "x" * 4000])
).map("".join)


def completion(text: str, calls: list[tuple[str, str]], finish: str) -> Completion:
    made = tuple(ToolCall(id=f"c{n}", name=name, arguments=arguments) for n, (name, arguments) in enumerate(calls))
    return Completion(text=text, tool_calls=made, finish_reason=finish, usage=Usage(), model="m")


DIALECTS: dict[str, Dialect] = {"swebench": "tool_call", **dict.fromkeys(TEXT, "text")}
MODELS = {name: configuration(name, dialect)["model"] for name, dialect in DIALECTS.items()}
SCAFFOLDS = {name: MiniScaffold.named(name, dialect) for name, dialect in DIALECTS.items()}


def both_read(config: str, answer: Completion) -> tuple[Any, Any]:
    """What each side makes of a completion: the commands, or the words for what is wrong."""
    player = Player(MODELS[config], DIALECTS[config], [answer])
    try:
        theirs: Any = [action["command"] for action in player.query([])["extra"]["actions"]]
    except FormatError as error:
        theirs = error.messages[0]["content"]
    reply = SCAFFOLDS[config].parse(answer)
    return theirs, [action.command for action in reply.actions] if reply.format_error is None else reply.format_error


@given(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3), FINISHES)
@PROPERTY
def test_calls_are_read_alike(calls: list[tuple[str, str]], finish: str) -> None:
    theirs, ours = both_read("swebench", completion("", calls, finish))
    assert ours == theirs


@pytest.mark.parametrize("config", TEXT)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14), finish=FINISHES)
@PROPERTY
def test_text_is_read_alike(config: str, pieces: list[str], finish: str) -> None:
    theirs, ours = both_read(config, completion("".join(pieces), [], finish))
    assert ours == theirs


@given(OUTPUTS, st.integers(0, 255))
@PROPERTY
def test_output_is_shown_alike(output: str, code: int) -> None:
    player = Player(MODELS["swebench"], "tool_call", [])
    text = output.replace("\r\n", "\n").replace("\r", "\n")  # as subprocess reads it
    ran = {"output": text, "returncode": code, "exception_info": ""}
    action = {"command": "x", "tool_call_id": "c"}
    (theirs,) = player.format_observation_messages({"extra": {"actions": [action]}}, [ran], {})
    seen = Observation(output=output.encode(), exit_code=code, size=len(output.encode()), sha256="")
    assert SCAFFOLDS["swebench"].observe(seen, Action(command="x"), timeout_s=1).shown == theirs["content"]


@given(OUTPUTS, st.sampled_from([0, 0, 0, 1, 137]))
@PROPERTY
def test_output_submits_alike(output: str, code: int) -> None:
    text = output.replace("\r\n", "\n").replace("\r", "\n")
    theirs = None
    try:
        DockerEnvironment._check_finished(SimpleNamespace(), {"output": text, "returncode": code})
    except Submitted as submitted:
        theirs = submitted.messages[0]["extra"]["submission"]
    seen = Observation(output=output.encode(), exit_code=code, ended=Exit.EXITED, size=len(output.encode()), sha256="")
    assert SCAFFOLDS["swebench"].submission_of(seen) == theirs
