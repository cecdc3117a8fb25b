"""Scaffold `mini-swe-agent` by itself, with templates of our own; what it is held against is in `test_parity`."""

import copy
import hashlib
import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.assemble import open_scaffold
from harness.config import LimitsSection, Study, load_study
from harness.errors import ConfigError, RolloutError
from harness.loop import submission_of
from harness.model.protocol import Completion
from harness.record import Action, Circumstances, Exit, Observation, Step, Task, Tokens, ToolCall, Usage
from harness.sandbox.shell import _Capture
from harness.scaffold.mini import SUBMIT_WORD, MiniScaffold
from harness.scaffold.protocol import Dialect
from harness.scaffold.stream import LongText, text_of
from tests.bug_cases.parts import shared_case
from tests.serving.parts import card_file

TASK = Task(instance_id="t", repo="r", base_commit="c", problem_statement="It breaks.\n")
OBSERVED = (
    "{% if output.exception_info %}! {{ output.exception_info }}\n{% endif %}rc {{ output.returncode }}\n"
    "{% if output.output | length < 10000 %}{{ output.output }}{% else %}"
    "{{ output.output[:5000] }}|{{ output.output | length - 10000 }}|{{ output.output[-5000:] }}{% endif %}"
)
SECOND: dict[str, Any] = {
    "agent": {"system_template": "In {{ cwd }}.\n", "instance_template": "Do: {{ task }}", "step_limit": 9},
    "environment": {"cwd": "/testbed", "timeout": 60, "interpreter": ["bash", "-c"], "env": {"PAGER": "cat"}},
    "model": {
        "observation_template": OBSERVED,
        "format_error_template": "{{ finish_reason }}: {{ error }} {{ actions | length }}",
    },
}
FIRST: dict[str, Any] = {
    "agent": {
        "system_template": "In {{ cwd }}.\n",
        "instance_template": "Do: {{ task }}",
        "action_observation_template": "rc {{ output.returncode }} of {{ output.action }}\n{{ output.output }}",
        "timeout_template": "too slow: {{ action['action'] }}\n{{ output }}",
        "format_error_template": "{{ actions | length }} blocks in {{ cwd }}",
    },
    "environment": {"cwd": "/testbed", "env": {"PAGER": "cat"}},
    "model": {"model_name": "m"},
}
DIGEST = hashlib.sha256(b"").hexdigest()


def second(dialect: Dialect = "tool_call", **changes: Any) -> MiniScaffold:
    return MiniScaffold.from_config(changed(SECOND, changes), dialect, source="ours")


def first(**changes: Any) -> MiniScaffold:
    return MiniScaffold.from_config(changed(FIRST, changes), "text", source="ours")


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`config` with `section__key=value`; None takes the key away."""
    made = copy.deepcopy(config)
    for name, value in changes.items():
        section, key = name.split("__")
        made[section][key] = value
        if value is None:
            del made[section][key]
    return made


def said(text: str = "", *calls: tuple[str, str], **more: Any) -> Completion:
    made = tuple(ToolCall(id=f"c{n}", name=name, arguments=arguments) for n, (name, arguments) in enumerate(calls))
    return Completion(**{
        "text": text, "tool_calls": made, "finish_reason": "stop", "usage": Usage(), "model": "m", **more
    })  # fmt: skip


def bash(command: Any) -> tuple[str, str]:
    return "bash", json.dumps({"command": command})


def seen(output: bytes, **more: Any) -> Observation:
    return Observation(**{"output": output, "exit_code": 0, "size": len(output), "sha256": DIGEST, **more})


def cut(output: bytes, keep: int) -> Observation:
    """What the runner keeps of `output`."""
    capture = _Capture(keep)
    for start in range(0, len(output), 1000):
        capture.add(output[start : start + 1000])
    kept = {"cut_at": capture.cut_at, "characters": capture.characters(), "size": capture.size}
    return seen(capture.kept(), **kept)


def step(scaffold: MiniScaffold, completion: Completion, *observations: Observation) -> Step:
    reply = scaffold.parse(completion)
    read = tuple(
        scaffold.observe(one, action, timeout_s=60) for one, action in zip(observations, reply.actions, strict=False)
    )
    return Step(
        index=1,
        agent="a",
        probability=1,
        seed=0,
        reply=reply,
        observations=read,
        state_digest=None,
        circumstances=Circumstances(started_at="", model_seconds=0),
    )


def python_reads(output: bytes) -> str:
    """As Python reads a pipe in text mode."""
    return io.TextIOWrapper(io.BytesIO(output), encoding="utf-8", errors="replace").read()


# --- what the model is shown


def test_the_opening_is_rendered_with_the_settings_of_the_configuration() -> None:
    assert second().opening(TASK) == [
        {"role": "system", "content": "In /testbed."},
        {"role": "user", "content": "Do: It breaks.\n"},
    ]


def test_a_turn_is_the_reply_and_an_answer_to_every_call() -> None:
    scaffold = second()
    turn = step(scaffold, said("", bash("ls"), bash("false")), seen(b"a\n"), seen(b"", exit_code=1))
    assistant, *answers = scaffold.step_messages(turn)
    assert assistant["content"] is None
    assert [call["function"] for call in assistant["tool_calls"]] == [
        {"name": "bash", "arguments": '{"command": "ls"}'},
        {"name": "bash", "arguments": '{"command": "false"}'},
    ]
    assert answers == [
        {"role": "tool", "tool_call_id": "c0", "content": "rc 0\na\n"},
        {"role": "tool", "tool_call_id": "c1", "content": "rc 1\n"},
    ]


@pytest.mark.parametrize("scaffold", [second(), first()])
def test_a_step_read_back_from_its_record_is_sent_as_it_was(scaffold: MiniScaffold) -> None:
    kinds = (said("", bash("ls"), reasoning="Because."), said("```bash\nls\n```", reasoning="Because."), said("Prose."))
    for completion in kinds:
        turn = step(scaffold, completion, seen(b"\xff\r\n"))
        again = Step.model_validate_json(turn.model_dump_json())
        assert scaffold.step_messages(again) == scaffold.step_messages(turn)


def test_reasoning_is_sent_back_by_generation_two_alone() -> None:
    sent = second().step_messages(step(second(), said("", bash("ls"), reasoning="Because."), seen(b"")))
    assert sent[0]["reasoning_content"] == "Because."
    sent = first().step_messages(step(first(), said("```bash\nls\n```", reasoning="Because."), seen(b"")))
    assert sent[0] == {"role": "assistant", "content": "```bash\nls\n```"}


def test_an_unreadable_reply_is_recorded_and_not_shown() -> None:
    scaffold = second()
    turn = step(scaffold, said("Prose."))
    (message,) = scaffold.step_messages(turn)
    assert message["role"] == "user"
    assert message["content"] == turn.reply.format_error
    assert turn.reply.text == "Prose."


def test_generation_one_shows_the_unreadable_reply() -> None:
    scaffold = first()
    assert scaffold.step_messages(step(scaffold, said("Prose."))) == [
        {"role": "assistant", "content": "Prose."},
        {"role": "user", "content": "0 blocks in /testbed"},
    ]


def test_generation_one_has_its_own_fence_words_and_submit_word() -> None:
    scaffold = first()
    turn = step(scaffold, said("```bash\n echo a \n```"), seen(b"a\r\nb", exit_code=None, ended=Exit.TIME_LIMIT))
    assert [action.command for action in turn.reply.actions] == ["echo a"]
    assert turn.observations[0].shown == "too slow: echo a\na\r\nb"
    turn = step(scaffold, said("```bash\nls\n```"), seen(b"a\r\nb"))
    assert scaffold.step_messages(turn)[1]["content"] == "rc 0 of ls\na\nb"
    assert scaffold.submission_of(seen(b"MINI_SWE_AGENT_FINAL_OUTPUT\np\n")) == "p\n"
    assert second().submission_of(seen(b"MINI_SWE_AGENT_FINAL_OUTPUT\np\n")) is None


def test_what_ended_an_action_is_told_as_an_exception() -> None:
    scaffold, action = second(), Action(command="sleep 9")
    told = {
        ended: scaffold.observe(seen(b"part", exit_code=None, ended=ended), action, timeout_s=60.0).shown
        for ended in (Exit.TIME_LIMIT, Exit.DISK_LIMIT, Exit.NOT_RUN)
    }
    assert "'sleep 9' timed out after 60 seconds\nrc -1\npart" in str(told[Exit.TIME_LIMIT])
    assert "remove files before writing more\nrc -1\npart" in str(told[Exit.DISK_LIMIT])
    assert str(told[Exit.NOT_RUN]).endswith("embedded null byte\nrc -1\n")
    killed = seen(b"", exit_code=None, ended=Exit.SIGNAL, signal=9)
    assert scaffold.observe(killed, action, timeout_s=60).shown == "rc 137\n"


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", "é🙂".encode(), b"\xff", b"\xe2\x82"]), max_size=60))
@settings(derandomize=True, deadline=None)
def test_output_reads_as_python_reads_a_pipe(pieces: list[bytes]) -> None:
    output = b"".join(pieces)
    assert text_of(seen(output)) == python_reads(output)
    assert text_of(seen(output), newlines=False) == output.decode("utf-8", "replace")


@given(
    st.lists(
        st.sampled_from([b"abc\n", b"\r\n", b"\r", "é🙂—".encode(), b"\xff\xfe", b"\xe2\x82", b"x" * 37]), min_size=20
    ),
    st.integers(40, 120),
    st.integers(0, 12),
)
@settings(derandomize=True, deadline=None)
def test_the_ends_and_the_length_of_a_cut_output_are_those_of_the_whole(pieces: list[bytes], keep: int, n: int) -> None:
    output = b"".join(pieces)
    whole, text = python_reads(output), text_of(cut(output, keep))
    assert len(text) == len(whole)
    if isinstance(text, LongText):
        shown = min(n, keep // 8 - 4)  # four bytes a character, half of them for each end
        assert text[:shown] == whole[:shown]
        assert text[len(whole) - shown :] == whole[len(whole) - shown :]
        with pytest.raises(RolloutError, match=r"raise sandbox\.output_bytes"):
            str(text)


def test_a_template_that_shows_more_than_is_kept_fails_and_says_what_to_raise() -> None:
    greedy = second(model__observation_template="{{ output.output }}")
    with pytest.raises(RolloutError, match=r"raise sandbox\.output_bytes"):
        greedy.observe(cut(b"x" * 5000, 1000), Action(command="x"), timeout_s=1)
    with pytest.raises(ConfigError, match=r"raise sandbox\.output_bytes \(it is 65536\)"):
        greedy.require_kept(65536)
    second().require_kept(65536)
    with pytest.raises(ConfigError, match=r"output_bytes"):
        second().require_kept(32768)


# --- how replies are read


@pytest.mark.parametrize("dialect", ["tool_call", "text"])
def test_lone_surrogates_do_not_reach_a_command(dialect: Dialect) -> None:
    text = "```mswea_bash_command\necho \ufffd\n```"
    calls = [("bash", '{"command": "echo \\ud800"}')] if dialect == "tool_call" else []
    (action,) = second(dialect).parse(said(text, *calls)).actions
    assert action.command == "echo \ufffd"


def test_deeply_nested_arguments_are_a_format_error() -> None:
    assert "Error parsing" in str(second().parse(said("", ("bash", "[" * 100_000))).format_error)


def test_the_logprob_is_that_of_the_action() -> None:
    pieces = (b"Think. ", b"```", b"mswea", b"_bash_command\nls\n", b"```")
    tokens = Tokens(ids=None, logprobs=(-9.0, -1.0, -2.0, -4.0, -8.0), pieces=pieces)
    text = b"".join(pieces).decode()
    assert second("text").parse(said(text, tokens=tokens)).logprob == -15.0
    for unclear in ("(?:a|b)(.*)c", "Think|`", "T?hink"):
        anything = second("text", model__action_regex=unclear)
        assert anything.parse(said(text, tokens=tokens)).logprob is None


def test_case_022_a_broken_call_is_never_sent_back() -> None:
    scaffold = second()
    turns = json.loads((shared_case("022-bad-args-poison") / "script.json").read_text())
    calls = [call["function"] for turn in turns for call in turn.get("message", {}).get("tool_calls", [])]
    assert len(calls) == 4
    for call in calls:
        turn = step(scaffold, said("", (call["name"], call["arguments"])))
        assert [message["role"] for message in scaffold.step_messages(turn)] == ["user"]
        assert turn.reply.tool_calls[0].arguments == call["arguments"]


# --- submission


@pytest.mark.parametrize(
    ("output", "submission"),
    [
        (f"{SUBMIT_WORD}\n", ""),
        (f"{SUBMIT_WORD}", ""),
        (f"\n \n  {SUBMIT_WORD}  \na\nb", "a\nb"),
        (f"{SUBMIT_WORD}\r\na\r\n", "a\n"),
        (f"x\n{SUBMIT_WORD}\n", None),
        (f"{SUBMIT_WORD}x\n", None),
        (f"{SUBMIT_WORD} x\n", None),
        ("", None),
    ],
)
def test_the_word_alone_on_the_first_line_submits(output: str, submission: str | None) -> None:
    assert second().submission_of(seen(output.encode())) == submission


@pytest.mark.parametrize(
    "ended",
    [
        {"exit_code": 1},
        {"exit_code": None, "ended": Exit.TIME_LIMIT},
        {"exit_code": None, "ended": Exit.DISK_LIMIT},
        {"exit_code": None, "ended": Exit.SIGNAL, "signal": 9},
    ],
)
def test_what_did_not_succeed_does_not_submit(ended: dict[str, Any]) -> None:
    assert second().submission_of(seen(f"{SUBMIT_WORD}\n".encode(), **ended)) is None


def test_a_submission_longer_than_is_kept_says_so_and_is_no_patch() -> None:
    scaffold, output = second(), f"{SUBMIT_WORD}\n".encode() + b"+line\n" * 20_000
    turn = step(scaffold, said("", bash("x")), cut(output, 65536))
    assert submission_of(turn, scaffold) == (
        f"forkroll: not kept: a submission of {len(output)} bytes; raise sandbox.output_bytes\n"
    )


# --- the configuration


def test_actions_get_the_variables_of_the_configuration() -> None:
    assert second().environment == {"PAGER": "cat"}
    assert first().environment == {"PAGER": "cat", "BASH_ENV": "/root/.bashrc"}
    own = second(environment__interpreter=["bash", "-lc"], environment__env={"BASH_ENV": "/etc/profile"})
    assert own.environment == {"BASH_ENV": "/etc/profile"}


def test_facts_name_templates_by_digest() -> None:
    facts = second().facts()
    assert facts["config"] == "ours"
    assert second(model__observation_template="{{ output.output[:9] }}").facts() != facts
    json.dumps(facts)


def test_notes_say_where_the_study_departs() -> None:
    limits = LimitsSection(calls=9, action_seconds=60)
    assert second().notes(limits) == []
    (note,) = second().notes(LimitsSection(calls=50, action_seconds=60))
    assert note == "`limits.calls` is 50; that of ours, `agent.step_limit: 9` (0: none), is not in force"
    assert "money" in second(agent__cost_limit=3.0).notes(limits)[0]
    assert "BASH_ENV=/root/.bashrc" in second(environment__interpreter=["bash", "-lc"]).notes(limits)[0]
    assert "`environment.envs`, which" in second(environment__envs={}).notes(limits)[0]
    assert "no variable of this machine" in second(environment__forward_env=["HOME"]).notes(limits)[0]
    assert "max_consecutive_format_errors: 0" in first().notes(limits)[1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model__observation_template": None}, r"`model\.observation_template` is missing or no text"),
        ({"agent__system_template": 5}, r"`agent\.system_template` is missing or no text"),
        ({"agent__instance_template": "{{ task"}, r"`agent\.instance_template`: line 1 is no valid Jinja2"),
        ({"agent__instance_template": "{{ nobody }}"}, r"`agent\.instance_template`: 'nobody' is undefined"),
        ({"model__observation_template": "{{ n_model_calls }}"}, "'n_model_calls' is undefined"),
        ({"model__observation_template": "{{ ''.__class__.__mro__ }}"}, "unsafe"),
        ({"model__format_error_template": "{{ error.nothing }}"}, "has no attribute 'nothing'"),
        ({"model__action_regex": "(x)"}, "set `dialect: text`"),
        ({"model__multimodal_regex": "(x)"}, "images"),
        ({"environment__interpreter": ["python", "-c"]}, "run by bash"),
        ({"environment__env": {"A": 1}}, "quotes around numbers"),
    ],
)
def test_a_configuration_that_does_not_work_is_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        second(**changes)
    assert str(caught.value).startswith("ours: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("regex", "says"), [("(", "no regular expression"), ("(a)(b)", "2 groups"), (5, "no regular")])
def test_a_regular_expression_that_does_not_work_is_one_line(regex: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        second("text", model__action_regex=regex)


def test_generation_one_is_text() -> None:
    with pytest.raises(ConfigError, match="set `dialect: text`"):
        MiniScaffold.from_config(FIRST, "tool_call", source="ours")


def test_a_section_that_is_none_is_one_line() -> None:
    with pytest.raises(ConfigError, match="`environment` holds no keys"):
        MiniScaffold.from_config({**SECOND, "environment": "x"}, "tool_call", source="ours")


# --- a study


def study(tmp_path: Path, scaffold: Any, *overrides: str, **more: Any) -> Study:
    content = {
        "name": "case",
        "seed": 1,
        "models": {"a": {"client": "scripted", "commands": ["true"]}},
        "directions": {"up": {"base": "a", "swap": "a"}},
        "forks": {"rule": "absolute", "at": [2]},
        "scaffold": scaffold,
        **more,
    }
    (tmp_path / "case.yaml").write_text(json.dumps(content))
    return load_study(str(tmp_path / "case.yaml"), overrides)


def test_a_study_takes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps(SECOND))
    scaffold = open_scaffold(study(tmp_path, {"name": "mini-swe-agent", "config": str(path)}))
    assert isinstance(scaffold, MiniScaffold)
    assert scaffold.facts()["config"] == str(path)


def test_a_study_takes_the_installed_package_by_name(tmp_path: Path) -> None:
    if find_spec("minisweagent") is None:
        pytest.skip("mini-swe-agent is not installed: scripts/setup dev")
    assert open_scaffold(study(tmp_path, "mini-swe-agent")).facts()["config"] == "swebench"


@pytest.mark.parametrize(
    ("scaffold", "more", "says"),
    [
        (
            {"name": "mini-swe-agent", "config": "no/such.yaml"},
            {},
            "No such file or directory; a file, or one of swebench",
        ),
        ({"name": "mini-swe-agent", "config": "swebench_xml"}, {}, "speaks `dialect: text`, not tool_call"),
        ({"name": "forkroll", "config": "swebench"}, {}, "`config` belongs to"),
        ({"name": "mini"}, {}, "'forkroll' or 'mini-swe-agent'"),
        ({"name": "mini-swe-agent", "konfig": "x"}, {}, "did you mean `config`"),
        ("mini-swe-agent", {"dialect": "text"}, "model 'a' is scripted: with `dialect: text` it knows no scaffold"),
    ],
)
def test_a_study_that_does_not_fit_is_one_line(tmp_path: Path, scaffold: Any, more: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_scaffold(study(tmp_path, scaffold, **more))


@pytest.mark.parametrize("kind", ["simulated", "card"])
def test_simulated_models_are_refused(tmp_path: Path, kind: str) -> None:
    served = {"client": "served", "card": str(card_file(tmp_path))}
    model = served if kind == "card" else {"client": "simulated", "profile": "small"}
    with pytest.raises(ConfigError, match="model 'a' is simulated"):
        open_scaffold(study(tmp_path, "mini-swe-agent", models={"a": model}))


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff\xfe", "not a text file"), (b"a: [", "not valid YAML"), (b"- a", "holds no sections")],
)
def test_a_file_that_is_no_configuration_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        open_scaffold(study(tmp_path, {"name": "mini-swe-agent", "config": str(path)}))


def test_too_little_kept_output_is_found_before_anything_is_run(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps(SECOND))
    with pytest.raises(ConfigError, match=r"raise sandbox\.output_bytes"):
        chosen = {"name": "mini-swe-agent", "config": str(path)}
        open_scaffold(study(tmp_path, chosen, "sandbox.output_bytes=10000"))
