"""What the model reads and how its reply is read."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.model.protocol import Completion
from harness.prompting import (
    SHOWN_CHARACTERS,
    Conversation,
    OwnScaffold,
    opening,
    parse,
    shown,
    step_messages,
    with_shown,
)
from harness.record import Circumstances, Exit, Observation, Reply, Step, Task, Tokens, ToolCall, Usage
from harness.scaffold.protocol import Dialect

TASK = Task(instance_id="t", repo="r", base_commit="c", problem_statement="It breaks.\n")


def completion(text: str = "", *calls: tuple[str, str], **more: object) -> Completion:
    made = tuple(ToolCall(id=f"c{n}", name=name, arguments=arguments) for n, (name, arguments) in enumerate(calls))
    return Completion(text=text, tool_calls=made, finish_reason="stop", usage=Usage(), model="m", **more)  # type: ignore[arg-type]


def observation(output: bytes, cut_at: int | None = None, size: int | None = None) -> Observation:
    digest = hashlib.sha256(output).hexdigest()
    return Observation(output=output, exit_code=0, size=size or len(output), sha256=digest, cut_at=cut_at)


def step(index: int, reply: Reply, *outputs: bytes) -> Step:
    return Step(
        index=index,
        agent="a",
        probability=1,
        seed=0,
        reply=reply,
        observations=tuple(with_shown(observation(output)) for output in outputs),
        state_digest=None,
        circumstances=Circumstances(started_at="", model_seconds=0),
    )


def bash(command: object) -> tuple[str, str]:
    return "bash", json.dumps({"command": command})


def test_tool_calls_become_actions_in_order() -> None:
    reply = parse(completion("note", bash("ls"), bash("pwd")), "tool_call")
    assert [action.command for action in reply.actions] == ["ls", "pwd"]
    assert reply.format_error is None


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ((), "calls no tool"),
        ((("bash", "{"),), "not valid JSON"),
        ((("bash", "[]"),), "an object with one string"),
        ((("bash", '{"cmd": "ls"}'),), "an object with one string"),
        ((bash(["ls"]),), "an object with one string"),
        ((("python", "{}"),), "no tool 'python'"),
        ((bash("ls"), ("bash", "{")), "not valid JSON"),
    ],
)
def test_a_call_that_cannot_be_read_is_a_format_error_and_runs_nothing(
    calls: tuple[tuple[str, str], ...], says: str
) -> None:
    reply = parse(completion("", *calls), "tool_call")
    assert reply.actions == ()
    assert says in (reply.format_error or "")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("note\n```bash\nls\n```", "ls"),
        ("```bash\ncat <<'EOF'\na\n\nEOF\n```\nmore", "cat <<'EOF'\na\n\nEOF"),
        ("```bash\necho '```'\n```", "echo '```'"),
    ],
)
def test_one_fenced_block_is_an_action(text: str, command: str) -> None:
    assert [action.command for action in parse(completion(text), "text").actions] == [command]


@pytest.mark.parametrize("text", ["ls", "```\nls\n```", "```bash\nls", "```bash\nls\n```\n```bash\npwd\n```"])
def test_none_or_two_blocks_are_a_format_error(text: str) -> None:
    assert "exactly one is needed" in (parse(completion(text), "text").format_error or "")


def test_a_cut_reply_says_so() -> None:
    cut = Completion(text="x", tool_calls=(), finish_reason="length", usage=Usage(), model="m")
    assert "cut at the token limit" in (parse(cut, "tool_call").format_error or "")


@pytest.mark.parametrize("arguments", ['{"command": ls}', "[1]", '"x"', "{", '{"wrong": 1}'])
def test_every_argument_sent_back_is_a_json_object_and_every_call_is_answered(arguments: str) -> None:
    reply = parse(completion("", ("bash", arguments)), "tool_call")
    assistant, *answers = step_messages(step(1, reply), "tool_call")
    sent = json.loads(assistant["tool_calls"][0]["function"]["arguments"])
    assert isinstance(sent, dict)
    assert reply.tool_calls[0].arguments == arguments
    assert [answer["tool_call_id"] for answer in answers] == ["c0"]


@pytest.mark.parametrize("dialect", ["tool_call", "text"])
def test_a_bad_reply_and_its_error_both_stay_in_the_conversation(dialect: Dialect) -> None:
    reply = parse(completion("just prose"), dialect)
    assistant, answer = step_messages(step(1, reply), dialect)
    assert assistant == {"role": "assistant", "content": "just prose"}
    assert answer["role"] == "user"
    assert answer["content"] == reply.format_error


@given(st.lists(st.sampled_from(["ls", "pwd", ""]), max_size=6), st.sampled_from(["tool_call", "text"]))
def test_a_conversation_grown_step_by_step_equals_one_built_at_once(commands: list[str], dialect: Dialect) -> None:
    history: list[Step] = []
    grown = Conversation(TASK, OwnScaffold(dialect))
    for number, command in enumerate(commands, 1):
        made = completion("n", bash(command)) if dialect == "tool_call" else completion(f"```bash\n{command}\n```")
        history.append(step(number, parse(made, dialect), b"out\n"))
        grown.follow(TASK, history)
    assert list(Conversation(TASK, OwnScaffold(dialect)).follow(TASK, history)) == list(
        grown.messages if history else opening(TASK, dialect)
    )


def test_a_conversation_that_is_given_another_history_starts_anew() -> None:
    one = [step(1, parse(completion("", bash("ls")), "tool_call"), b"1")]
    other = [step(1, parse(completion("", bash("pwd")), "tool_call"), b"2")]
    conversation = Conversation(TASK, OwnScaffold("tool_call"))
    conversation.follow(TASK, one)
    assert list(conversation.follow(TASK, other)) == list(
        Conversation(TASK, OwnScaffold("tool_call")).follow(TASK, other)
    )


@given(st.binary(max_size=300))
def test_what_is_shown_is_stored_only_where_it_is_not_the_output_itself(output: bytes) -> None:
    kept = with_shown(observation(output))
    assert (kept.shown is None) == (shown(kept).encode() == output)


def test_long_output_is_cut_in_the_middle_with_a_mark() -> None:
    text = shown(observation(b"a" * SHOWN_CHARACTERS + b"b" * SHOWN_CHARACTERS))
    assert text.startswith("a" * 100)
    assert text.endswith("b" * 100)
    assert f"[... {SHOWN_CHARACTERS} bytes not shown ...]" in text


def test_an_output_already_cut_in_the_sandbox_counts_all_that_is_gone() -> None:
    assert "[... 990 bytes not shown ...]" in shown(observation(b"aaaaabbbbb", cut_at=5, size=1000))


def test_a_time_limit_is_told() -> None:
    late = Observation(output=b"part", exit_code=None, ended=Exit.TIME_LIMIT, size=4, sha256="-")
    reply = parse(completion("", bash("sleep 9")), "tool_call")
    messages = step_messages(step(1, reply).model_copy(update={"observations": (late,)}), "tool_call")
    assert "time limit" in messages[1]["content"]
    assert "part" in messages[1]["content"]


def scored(pieces: list[bytes], logprobs: list[float | None]) -> Completion:
    tokens = Tokens(ids=None, logprobs=tuple(logprobs), pieces=tuple(pieces))
    return completion("", bash("ls"), tokens=tokens)


def test_action_logprob_is_the_sum_from_the_marker_on() -> None:
    pieces = [b"note", b"<tool", b"_call>", b"x"]
    assert parse(scored(pieces, [-9.0, -1.0, -0.5, -0.25]), "tool_call").logprob == -1.75


@pytest.mark.parametrize(
    ("pieces", "logprobs"),
    [
        ([b"note<tool", b"_call>"], [-1.0, -1.0]),
        ([b"note", b"<tool_call>"], [-1.0, None]),
        ([b"note"], [-1.0]),
    ],
)
def test_action_logprob_is_unknown_rather_than_guessed(pieces: list[bytes], logprobs: list[float | None]) -> None:
    assert parse(scored(pieces, logprobs), "tool_call").logprob is None
