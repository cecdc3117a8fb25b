"""SWE-agent's files as its public documentation describes them; every file here is of our own making."""

import json
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.importers.continuing import logged_scaffold
from harness.importers.protocol import Document, Imported, ImportFault
from harness.importers.sweagent import SweAgentImporter
from harness.record import Exit, Stop, Trajectory, commands


def item(response: str, action: str, observation: str, **more: Any) -> dict[str, Any]:
    thought = response.partition("\n")[0]
    made = {"action": action, "observation": observation, "response": response, "thought": thought}
    return {**made, "execution_time": 0.5, "state": {"working_dir": "/repo"}, "query": [], **more}


def said(text: str, action: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "action": action, "agent": "main", "message_type": "action"}


def seen(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text, "agent": "main", "message_type": "observation"}


HISTORY = [
    {"role": "system", "content": "s", "agent": "main", "message_type": "system_prompt"},
    {"role": "assistant", "content": "shown how", "is_demo": True, "agent": "main"},
    {"role": "user", "content": "the issue", "agent": "main"},
    said("look\nls", "ls\n"),
    seen("OBSERVATION: a"),
    said("done\nsubmit", "submit"),
    seen("ok"),
]
STEPS = [item("look\nls", "ls\n", "a"), item("hm", "", ""), item("done\nsubmit", "submit", "ok")]


def content(**more: Any) -> dict[str, Any]:
    stats = {"api_calls": 3, "tokens_sent": 50, "tokens_received": 9, "instance_cost": 0.1}
    info = {"exit_status": "submitted", "submission": "diff", "model_stats": stats, **more}
    config = json.dumps({"agent": {"model": {"name": "a-model"}}})
    return {"trajectory": STEPS, "history": HISTORY, "info": info, "replay_config": config}


def read(made: Any, **more: Any) -> Imported:
    document = Document(**{"name": "a.traj", "content": made, "sha256": "", "task_id": "i", **more})
    imported = SweAgentImporter().read(document, "m")
    assert Trajectory.model_validate_json(imported.base.model_dump_json()) == imported.base
    return imported


def test_each_item_is_a_call_and_what_was_asked_again_adds_no_message() -> None:
    imported = read(content(), resolved=True)
    base = imported.base
    assert imported.model == "a-model"
    assert commands(base.steps) == ["ls", "submit"]
    assert [step.reply.format_error is None for step in base.steps] == [True, False, True]
    assert [len(step.messages or ()) for step in base.steps] == [2, 0, 2]
    assert [message["content"] for message in base.opening or ()] == ["s", "shown how", "the issue"]
    assert base.steps[0].messages == (
        {"role": "assistant", "content": "look\nls"},
        {"role": "user", "content": "OBSERVATION: a"},
    )
    assert (base.ending.spent.calls, base.ending.spent.input_tokens, base.ending.spent.output_tokens) == (3, 50, 9)
    assert (base.ending.stop, base.ending.submission, base.ending.patch) == (Stop.SUBMITTED, "diff", b"diff")
    assert base.ending.outcome.status == "resolved"


def test_exit_codes_are_unknown() -> None:
    (found,) = read(content()).base.steps[0].observations
    assert (found.output, found.exit_code, found.ended) == (b"a", None, Exit.UNKNOWN)


def test_a_history_that_does_not_match_is_said() -> None:
    made = content()
    made["history"] = [*HISTORY[:3], said("another", "another"), seen("?")]
    assert "has a history that does not match its steps" in read(made).remarks
    assert read(content()).remarks == ("keeps no exit codes",)


@pytest.mark.parametrize(
    ("status", "stop"),
    [
        ("submitted (exit_cost)", Stop.COST_LIMIT),
        ("submitted (exit_context)", Stop.CONTEXT_FULL),
        ("exit_format", Stop.FORMAT_ERRORS),
        ("exit_error", Stop.BROKEN_OFF),
    ],
)
def test_what_was_submitted_for_the_agent_is_no_submission_of_its_own(status: str, stop: Stop) -> None:
    ending = read(content(exit_status=status)).base.ending
    assert (ending.stop, ending.submission, ending.patch) == (stop, None, b"diff")


@pytest.mark.parametrize(
    ("made", "more", "place"),
    [
        ({"info": {}}, {}, "trajectory"),
        ({"trajectory": []}, {}, "info"),
        (content(exit_status=None), {}, "info.exit_status"),
        ({**content(), "trajectory": [3]}, {}, "trajectory[0]"),
        ({**content(), "history": [3]}, {}, "history[0]"),
        (content(), {"task_id": None}, ""),
    ],
)
def test_what_cannot_be_imported_is_refused_with_its_place(made: Any, more: Any, place: str) -> None:
    with pytest.raises(ImportFault) as fault:
        read(made, **more)
    assert fault.value.place == place


def test_nothing_is_lost_and_it_is_not_gone_on_with() -> None:
    source = read(content()).base.source
    assert source is not None
    assert json.loads(source.rest) == [content()]
    with pytest.raises(ConfigError, match="cannot be gone on with"):
        logged_scaffold(source)
