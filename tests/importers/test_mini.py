"""What mini-swe-agent's files hold arrives in the record, and what they do not say stays unknown."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.exporters.mini import restored_document
from harness.importers.files import documents
from harness.importers.mini import MiniImporter
from harness.importers.protocol import Document, Imported, ImportFault, Refused
from harness.record import Exit, Stop, Trajectory, commands

HEAD = [{"role": "system", "content": "s"}, {"role": "user", "content": "t"}]
EXIT = {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}}


def log(*messages: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A log of format 1.1, unless `more` says otherwise."""
    info = {"exit_status": "Submitted", "submission": "", "model_stats": {"api_calls": 1}, "config": {}}
    info |= more.pop("info", {})
    return {
        "info": info,
        "messages": [*HEAD, *messages],
        "trajectory_format": "mini-swe-agent-1.1",
        "instance_id": "i",
        **more,
    }


def reply(*found: str, **more: Any) -> dict[str, Any]:
    actions = [{"command": command, "tool_call_id": f"c{number}"} for number, command in enumerate(found)]
    return {"role": "assistant", "content": "so", "extra": {"actions": actions}, **more}


def answer(output: str, code: int | None, call: str = "c0", **more: Any) -> dict[str, Any]:
    extra = {"raw_output": output, "returncode": code, "exception_info": "", **more}
    return {"role": "tool", "tool_call_id": call, "content": f"shown: {output}", "extra": extra}


def read(content: object, **more: Any) -> Imported:
    """Imports `content`, and checks that it can be had back."""
    imported = MiniImporter().read(Document("a.traj.json", content, "", **more), "m")
    base = Trajectory.model_validate_json(imported.base.model_dump_json())
    assert base == imported.base
    assert base.source is not None
    assert json.dumps(restored_document(base, base.source)) == json.dumps(content)
    return imported


def test_an_action_has_its_output_and_exit_code() -> None:
    (step,) = read(log(reply("false"), answer("x\ny", 3), EXIT)).base.steps
    (seen,) = step.observations
    assert (seen.output, seen.exit_code, seen.ended, seen.kept) == (b"x\ny", 3, Exit.EXITED, "text")
    assert (step.seed, step.state_digest, step.processes, step.request_digest) == (None, None, None, None)


def test_messages_are_verbatim_but_for_what_no_conversation_is_made_of() -> None:
    call = {"index": 0, "id": "c0", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    said = reply("ls", tool_calls=[call], content=None, function_call=None, reasoning_content="hm")
    (step,) = read(log(said, answer("x", 0), EXIT)).base.steps
    call_sent = {key: value for key, value in call.items() if key != "index"}
    assert step.messages == (
        {"role": "assistant", "content": None, "tool_calls": [call_sent], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c0", "content": "shown: x"},
    )
    assert (step.reply.text, step.reply.reasoning, step.reply.tool_calls[0].id) == ("", "hm", "c0")


def test_of_an_action_without_an_answer_nothing_is_known_but_that_it_was_run() -> None:
    imported = read(log(reply("one", "two"), answer("1", 0), reply("three"), answer("3", 0), EXIT))
    assert "holds actions without an answer" in " ".join(imported.remarks)
    first, second = imported.base.steps[0].observations
    assert first.output == b"1"
    assert (second.kept, second.ended, second.exit_code) == ("nothing", Exit.UNKNOWN, None)


def test_the_submitting_call_is_unanswered() -> None:
    base = read(log(reply("ls"), answer("1", 0), reply("submit"), EXIT, info={"submission": "diff"})).base
    assert [seen.kept for seen in base.steps[-1].observations] == ["nothing"]
    assert (base.ending.stop, base.ending.submission, base.ending.patch) == (Stop.SUBMITTED, "diff", b"diff")


def test_answers_are_matched_by_the_id_of_their_call() -> None:
    base = read(log(reply("one", "two"), answer("2", 0, "c1"), answer("1", 0, "c0"), EXIT)).base
    assert [seen.output for seen in base.steps[0].observations] == [b"1", b"2"]


def test_an_answer_goes_to_the_call_that_it_names_though_an_earlier_one_has_none() -> None:
    base = read(log(reply("one", "two"), answer("2", 0, "c1"), reply("three"), answer("3", 0), EXIT)).base
    first, second = base.steps[0].observations
    assert (first.kept, second.output) == ("nothing", b"2")


def test_answers_that_name_no_call_are_paired_in_order_and_that_is_said() -> None:
    imported = read(log(reply("one", "two"), answer("1", 0, "x"), answer("2", 0, "y"), EXIT))
    assert [seen.output for seen in imported.base.steps[0].observations] == [b"1", b"2"]
    assert "paired in order" in " ".join(imported.remarks)


@pytest.mark.parametrize(
    ("extra", "ended"),
    [
        ({"exception_info": "timed out after 60 seconds", "exception_type": "TimeoutExpired"}, Exit.TIME_LIMIT),
        ({"exception_info": "the command timed out after 60 seconds"}, Exit.TIME_LIMIT),
        ({"exception_info": "action was not executed"}, Exit.NOT_RUN),
        ({"exception_info": "no such container"}, Exit.UNKNOWN),
    ],
)
def test_an_exception_is_no_exit_code(extra: dict[str, str], ended: Exit) -> None:
    (seen,) = read(log(reply("ls"), answer("part", -1, **extra), EXIT)).base.steps[0].observations
    assert (seen.ended, seen.exit_code, seen.output) == (ended, None, b"part")


def test_a_format_error_whose_reply_was_dropped_is_a_step() -> None:
    error = {"role": "user", "content": "bad", "extra": {"interrupt_type": "FormatError"}}
    imported = read(log(error, reply("ls"), answer("1", 0), error, error, EXIT, info={"model_stats": {"api_calls": 4}}))
    steps = imported.base.steps
    assert [step.reply.format_error for step in steps] == ["bad", None, "bad", "bad"]
    assert [step.reply.text for step in steps] == ["", "so", "", ""]
    assert steps[0].messages == ({"role": "user", "content": "bad"},)
    assert imported.base.ending.spent.format_errors_in_a_row == 2
    assert imported.remarks == ("holds format errors whose replies were not kept",)


def test_a_dropped_reply_is_had_from_the_response_that_was_kept() -> None:
    said = {"role": "assistant", "content": "prose", "tool_calls": [{"id": "q", "function": {"name": "x"}}]}
    response = {"model": "m", "choices": [{"finish_reason": "length", "message": said}], "usage": {"prompt_tokens": 9}}
    extra = {"interrupt_type": "FormatError", "response": response}
    (step,) = read(log({"role": "user", "content": "bad", "extra": extra}, EXIT)).base.steps
    assert (step.reply.text, step.reply.finish_reason, step.reply.usage.input_tokens) == ("prose", "length", 9)
    assert [call.name for call in step.reply.tool_calls] == ["x"]
    assert step.messages == ({"role": "user", "content": "bad"},)


def test_an_interruption_by_a_person_is_neither_an_answer_nor_a_call() -> None:
    spoken = {"role": "user", "content": "stop", "extra": {"interrupt_type": "UserInterruption"}}
    base = read(log(reply("ls"), spoken, answer("1", 0), reply("pwd"), answer("2", 0), spoken, EXIT)).base
    assert [step.reply.format_error for step in base.steps] == [None, None]
    assert [seen.output for step in base.steps for seen in step.observations] == [b"1", b"2"]
    assert [len(step.messages or ()) for step in base.steps] == [3, 3]


OLD = {"trajectory_format": "mini-swe-agent-1"}
TIMEOUT = "Too slow: {{action['action']}}\n <out>\n{{output}}\n</out>\nAnother, please."


def old(text: str, seen: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"role": "assistant", "content": text}, {"role": "user", "content": seen}


@pytest.mark.parametrize(
    ("seen", "output", "code", "ended", "kept"),
    [
        ("<returncode>2</returncode>\n<output>\na\n</output>", b"a\n", 2, Exit.EXITED, "text"),
        ("<returncode>0</returncode>\n<output>\n</output>", b"", 0, Exit.EXITED, "text"),
        ("<returncode>0</returncode>\n<output>\n</output>\nx</output>", b"</output>\nx", 0, Exit.EXITED, "text"),
        ("Too slow: make\n <out>\nhalf\n\n</out>\nAnother, please.", b"half\n", None, Exit.TIME_LIMIT, "text"),
        ("something else", b"something else", None, Exit.UNKNOWN, "shown"),
    ],
)
def test_outputs_are_read_back_out_of_text(seen: str, output: bytes, code: int, ended: Exit, kept: str) -> None:
    info = {"config": {"agent": {"timeout_template": TIMEOUT}}, "exit_status": "LimitsExceeded"}
    base = read(log(*old("```bash\nmake\n```", seen), info=info, **OLD)).base
    (found,) = base.steps[0].observations
    assert (found.output, found.exit_code, found.ended, found.kept) == (output, code, ended, kept)


def test_of_a_long_output_both_ends_and_the_length_are_known() -> None:
    seen = (
        "<returncode>1</returncode>\n<warning>w</warning><output_head>\nabc\n</output_head>\n<elided_chars>\n7 "
        "characters elided\n</elided_chars>\n<output_tail>\nxyz\n</output_tail>"
    )
    (found,) = read(log(*old("```bash\nls\n```", seen), **OLD)).base.steps[0].observations
    assert (found.output, found.cut_at, found.characters, found.kept, found.exit_code) == (b"abcxyz", 3, 13, "ends", 1)


def test_format_1_keeps_a_reply_that_cannot_be_read() -> None:
    messages = (*old("none", "one please"), *old("```bash\na\n```\n```bash\nb\n```", "one!"))
    submitted = old("```bash\n sub \n```", "the patch")
    base = read(log(*messages, *submitted, info={"submission": "the patch"}, **OLD)).base
    assert [step.reply.format_error for step in base.steps] == ["one please", "one!", None]
    assert commands(base.steps) == ["sub"]
    assert [len(step.messages or ()) for step in base.steps] == [2, 2, 1]


def test_a_last_message_that_only_says_why_it_ended_is_no_step() -> None:
    seen = old("```bash\nls\n```", "<returncode>0</returncode>\n<output>\n</output>")
    info = {"exit_status": "LimitsExceeded", "model_stats": {"api_calls": 1, "instance_cost": 3.2}}
    info["config"] = {"agent": {"cost_limit": 3.0, "step_limit": 250}}
    base = read(log(*seen, {"role": "user", "content": ""}, info=info, **OLD)).base
    assert len(base.steps) == 1
    assert (base.ending.stop, base.ending.submission) == (Stop.COST_LIMIT, None)


@pytest.mark.parametrize(
    ("status", "stats", "stop"),
    [
        ("Submitted", {}, Stop.SUBMITTED),
        ("LimitsExceeded", {"api_calls": 250, "instance_cost": 9}, Stop.CALL_LIMIT),
        ("LimitsExceeded", {"api_calls": 9, "instance_cost": 3}, Stop.COST_LIMIT),
        ("TimeExceeded", {}, Stop.TIME_LIMIT),
        ("RepeatedFormatError", {}, Stop.FORMAT_ERRORS),
        ("ContextWindowExceededError", {}, Stop.CONTEXT_FULL),
        ("InternalServerError", {}, Stop.BROKEN_OFF),
    ],
)
def test_exit_statuses(status: str, stats: dict[str, int], stop: Stop) -> None:
    limits = {"agent": {"step_limit": 250, "cost_limit": 3.0}}
    ending = {"role": "exit", "content": status, "extra": {"exit_status": status, "submission": ""}}
    info = {"exit_status": status, "model_stats": stats, "config": limits}
    base = read(log(reply("ls"), answer("1", 0), ending, info=info)).base
    assert base.ending.stop is stop
    assert base.ending.submission == ("" if stop is Stop.SUBMITTED else None)


@pytest.mark.parametrize(("resolved", "status"), [(True, "resolved"), (False, "unresolved"), (None, "unscored")])
def test_the_verdict_is_the_logs_own_or_none(resolved: bool | None, status: str) -> None:
    assert read(log(reply("ls"), EXIT), resolved=resolved).base.ending.outcome.status == status


def test_times_are_utc_and_durations_what_lies_between() -> None:
    first, second = reply("a"), reply("b")
    first["extra"] |= {"timestamp": 1767225600.0}
    second["extra"] |= {"timestamp": "2026-01-01T00:00:09"}
    messages = first, answer("", 0, timestamp=1767225602.0), second, answer("", 0)
    one, two = (step.circumstances for step in read(log(*messages, EXIT)).base.steps)
    assert (one.started_at, one.model_seconds, one.action_seconds) == ("2026-01-01T00:00:00+00:00", None, (2.0,))
    assert (two.model_seconds, two.action_seconds, one.naive_clock, two.naive_clock) == (7.0, (), False, True)


FAULTS = [
    ([], "", "a list, not a trajectory"),
    ({"messages": []}, "trajectory_format", "missing"),
    (log(trajectory_format="other-7"), "trajectory_format", "'other-7' is not known"),
    (log(info={"exit_status": None}), "info.exit_status", "never finished"),
    ({**log(), "info": 3}, "info", "of type int"),
    ({**log(), "messages": [None]}, "messages[0]", "a NoneType"),
    ({**log(), "instance_id": None}, "instance_id", "missing"),
    (
        log({"role": "assistant", "extra": {"actions": [{"run": "x"}]}}),
        "messages[2].extra.actions[0].command",
        "missing",
    ),
    (log(info={"config": {"model": {"action_regex": "("}}}), "info.config", "no regular expression"),
]


@pytest.mark.parametrize(("content", "place", "problem"), FAULTS)
def test_what_cannot_be_imported_is_refused_with_its_place(content: object, place: str, problem: str) -> None:
    with pytest.raises(ImportFault) as fault:
        MiniImporter().read(Document("x", content, ""), "m")
    assert fault.value.place == place
    assert problem in fault.value.problem


def test_files_that_cannot_be_read_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    good = json.dumps(log(reply("ls"), EXIT))
    (tmp_path / "a.traj.json").write_text(good)
    (tmp_path / "b.traj.json").write_text(good[:40])
    (tmp_path / "c.traj.json").write_text("")
    (tmp_path / "d.jsonl").write_text(f'{good}\n\n{{"traj": {good}, "run": "r", "resolved": true}}\n{good[:50]}')
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(good.encode() * 9)[:-9])
    (tmp_path / "preds.json").write_text("{}")
    found = list(documents([tmp_path, tmp_path / "none.json"]))
    assert [one.name for one in found if isinstance(one, Document)] == ["a.traj.json", "d.jsonl:1", "d.jsonl:3"]
    assert [one.resolved for one in found if isinstance(one, Document)] == [None, None, True]
    refused = [one.line() for one in found if isinstance(one, Refused)]
    assert [line.partition(":")[0] for line in refused] == [
        "b.traj.json", "c.traj.json", "d.jsonl", "e.jsonl.gz", str(tmp_path / "none.json"),
    ]  # fmt: skip
    assert "cut off" in refused[0] and "empty" in refused[1] and refused[2].startswith("d.jsonl:4: not JSON")


def test_lone_surrogates_become_the_replacement_character_everywhere(tmp_path: Path) -> None:
    text = json.dumps(log(reply("echo \ud800"), answer("\udfff \U0001f600", 0), EXIT))
    (tmp_path / "a.traj.json").write_text(text)
    (document,) = documents([tmp_path])
    assert isinstance(document, Document)
    base = read(document.content).base
    assert commands(base.steps) == ["echo \ufffd"]
    assert base.steps[0].observations[0].output == "\ufffd \U0001f600".encode()
    base.model_dump_json().encode("utf-8")


def test_case_020(shared_data: Path) -> None:
    (document,) = documents([shared_data.parent / "bugs/cases/020-dropped-malformed/gaps.traj.json"])
    assert isinstance(document, Document)
    steps = read(document.content).base.steps
    assert commands(steps) == ["echo 1", "echo 2", "echo 2b", "echo 3"]
    errors = [step for step in steps if step.reply.format_error is not None]
    assert [(step.index, step.reply.text) for step in errors] == [(2, ""), (3, "")]
    assert steps[-1].messages is not None
    assert [message["role"] for message in steps[-1].messages] == ["assistant", "tool"]


def test_case_036(shared_data: Path) -> None:
    taken, refused = [], []
    for found in documents([shared_data.parent / "bugs/cases/036-truncated-record"]):
        try:
            assert isinstance(found, Document)
            taken.append(MiniImporter().read(found, "m").base.task_id)
        except (ImportFault, AssertionError):
            refused.append(found.name)
    assert taken == ["demo__demo-1"]
    assert [f"demo__demo-{number}.traj.json" for number in (2, 3, 4, 5)] == refused[:4]


@pytest.mark.parametrize(
    "name", ["deepseek-chat_lite_test100", "deepseek_lite_dev23_repeats", "gemini-3-pro_verified500"]
)
def test_real_trajectories_come_back_as_they_were(shared_data: Path, name: str) -> None:
    """The first few of each file; scripts/check_imports does all 706."""
    with gzip.open(shared_data / "mini_swe_agent" / f"{name}.jsonl.gz", "rt") as stream:
        for _, line in zip(range(4), stream, strict=False):
            wrapped = json.loads(line)
            base = read(wrapped["traj"], resolved=wrapped["resolved"]).base
            assert base.ending.spent.calls == wrapped["traj"]["info"]["model_stats"]["api_calls"]
