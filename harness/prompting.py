"""Our own scaffold: history to messages, completion to reply.

Two dialects. `tool_call`: one tool `bash`, one or more calls a turn. `text`: exactly one fenced bash block.
A reply that cannot be read is a format error: it stays in the history as it was (with its arguments made valid
JSON where a server's template would choke on them) and is answered with what was wrong.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.model.digest import RequestDigest
from harness.model.protocol import Completion, Message, Sampling
from harness.model.said import Unclear, first_token
from harness.record import Action, Exit, Observation, Reply, Step, Task, ToolCall, clean_text
from harness.scaffold.protocol import Dialect, Scaffold

SUBMIT_WORD = "FORKROLL_SUBMIT"
SHOWN_CHARACTERS = 10_000
"""Longer output is shown to the model as its first and last half of this many characters."""

BASH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run one bash command in the repository.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command, as typed into bash."}},
            "required": ["command"],
        },
    },
}

_SYSTEM = "You maintain software. You work on a git repository through a bash shell, one step at a time."
_FORM: dict[Dialect, str] = {
    "tool_call": "Reply with a short note of what you intend and call the tool `bash`.",
    "text": "Reply with a short note of what you intend and exactly one block that opens with ```bash.",
}
_INSTANCE = """The repository in the current folder has this open issue:

<issue>
{issue}
</issue>

Change the source code so that the issue is resolved. Hidden tests will judge the result; leave existing tests alone.

How it works:
- {form}
- Every command starts in a fresh shell at the root of the repository: `cd` and variables do not last.
- Nothing can be typed into a running command; a command that takes too long is ended.
- When the work is done, run this command alone: echo {word}
"""
_FENCE = re.compile(r"^```bash[ \t]*\n(.*?)\n?^```[ \t]*$", re.DOTALL | re.MULTILINE)
_MARKERS: dict[Dialect, bytes] = {"tool_call": b"<tool_call>", "text": b"```bash\n"}


def tools(dialect: Dialect) -> list[dict[str, Any]]:
    """Tool schemas to send with a request."""
    return [BASH_TOOL] if dialect == "tool_call" else []


def opening(task: Task, dialect: Dialect) -> list[Message]:
    """The messages before the first step."""
    issue = clean_text(task.problem_statement).strip()
    instance = _INSTANCE.format(issue=issue, form=_FORM[dialect], word=SUBMIT_WORD)
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": instance}]


def shown(observation: Observation) -> str:
    """The output as the model reads it: text with U+FFFD for what is not UTF-8, cut in the middle when long."""
    output, cut = observation.output, observation.cut_at
    parts = [output] if cut is None else [output[:cut], output[cut:]]
    texts = [part.decode("utf-8", "replace") for part in parts]
    if cut is None and len(texts[0]) <= SHOWN_CHARACTERS:
        return texts[0]
    half = SHOWN_CHARACTERS // 2
    head, tail = texts[0][:half], texts[-1][-half:]
    gone = observation.size - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {max(gone, 0)} bytes not shown ...]\n{tail}"


def with_shown(observation: Observation) -> Observation:
    """The observation with `shown` filled in where it is not simply the output as text."""
    text = shown(observation)
    same = text.encode("utf-8") == observation.output
    return observation if same else observation.model_copy(update={"shown": text})


def _observed(observation: Observation) -> str:
    text = observation.output.decode("utf-8") if observation.shown is None else observation.shown
    ended = {
        Exit.EXITED: f"exit code: {observation.exit_code}",
        Exit.SIGNAL: f"ended by signal {observation.signal}",
        Exit.TIME_LIMIT: "ended by the time limit; what it printed until then follows",
        Exit.DISK_LIMIT: "ended by the disk limit: remove files before writing more; what it printed follows",
        Exit.NOT_RUN: "not run",
    }[observation.ended]
    return f"{ended}\noutput:\n{text}"


def _valid_arguments(call: ToolCall) -> str:
    """`call.arguments` when it is a JSON object, else an object that carries the raw string: a server's chat
    template parses arguments of past calls and refuses every later request when one is broken."""
    try:
        parsed = json.loads(call.arguments)
    except ValueError:
        parsed = None
    return call.arguments if isinstance(parsed, dict) else json.dumps({"unreadable": call.arguments})


def _call_message(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _valid_arguments(call)}
    return {"id": call.id, "type": "function", "function": function}


def step_messages(step: Step, dialect: Dialect) -> list[Message]:
    """The messages that `step` adds to the conversation."""
    reply = step.reply
    assistant: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.tool_calls and dialect == "tool_call":
        assistant["tool_calls"] = [_call_message(call) for call in reply.tool_calls]
    return [assistant, *_answers(step, dialect)]


def _answers(step: Step, dialect: Dialect) -> list[Message]:
    reply = step.reply
    if reply.format_error is None:
        texts = [_observed(observation) for observation in step.observations]
    else:
        texts = [reply.format_error] * max(len(reply.tool_calls), 1)
    if dialect == "tool_call" and reply.tool_calls:
        calls = zip(reply.tool_calls, texts, strict=False)
        return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in calls]
    return [{"role": "user", "content": "\n\n".join(texts)}]


class OwnScaffold:
    """The scaffold `forkroll`."""

    name = "forkroll"

    def __init__(self, dialect: Dialect) -> None:
        self.dialect: Dialect = dialect
        self.environment: Mapping[str, str] = {}

    def facts(self) -> Mapping[str, object]:
        """Nothing beyond the dialect: the prompts are ours, and `prompts_digest` names them."""
        return {"name": self.name, "dialect": self.dialect}

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tool `bash`, or none."""
        return tools(self.dialect)

    def opening(self, task: Task) -> Sequence[Message]:
        """System message and task."""
        return opening(task, self.dialect)

    def parse(self, completion: Completion) -> Reply:
        """Read calls, or the one block."""
        return parse(completion, self.dialect)

    @property
    def action_marker(self) -> bytes:
        """The tag of a call as the templates of Qwen and Hermes write it, or the fence."""
        return _MARKERS[self.dialect]

    def observe(self, observation: Observation, action: Action, *, timeout_s: float) -> Observation:
        """Long output is cut in the middle."""
        return with_shown(observation)

    def step_messages(self, step: Step) -> Sequence[Message]:
        """The reply as it was, and what answers it."""
        return step_messages(step, self.dialect)

    def submission_of(self, observation: Observation) -> str | None:
        """What was printed after the submit word, which stands alone on the first line of a successful command."""
        if observation.ended is not Exit.EXITED or observation.exit_code != 0:
            return None
        first, _, rest = observation.output.partition(b"\n")
        return rest.decode("utf-8", "replace") if first.strip() == SUBMIT_WORD.encode() else None


class Conversation:
    """The message list of one rollout and its digest, grown step by step so that the cost per step stays flat."""

    def __init__(self, task: Task, scaffold: Scaffold, opening: Sequence[Message] | None = None) -> None:
        """`opening` stands for the scaffold's own where a rollout was imported with another."""
        self._task, self._scaffold, self._opening = task, scaffold, opening
        self._steps: list[Step] = []
        self._digest = RequestDigest()
        self.messages: list[Message] = []
        self._add(scaffold.opening(task) if opening is None else opening)

    def follow(self, task: Task, history: Sequence[Step]) -> Sequence[Message]:
        """The messages for `history`; steps already followed are not rendered again."""
        known = len(self._steps)
        extends = known <= len(history) and (not known or self._steps[-1] is history[known - 1])
        if task is not self._task or not extends:
            self.__init__(task, self._scaffold, self._opening)  # type: ignore[misc]
            known = 0
        for step in history[known:]:
            self._add(self._scaffold.step_messages(step) if step.messages is None else step.messages)
            self._steps.append(step)
        return self.messages

    def _add(self, messages: Sequence[Message]) -> None:
        self.messages += messages
        self._digest.add(messages)

    def request_digest(self, tools: Sequence[Mapping[str, Any]], sampling: Sampling) -> str:
        """Of a request that sends the messages so far."""
        return self._digest.of(tools, sampling)


def parse(completion: Completion, dialect: Dialect) -> Reply:
    """The reply that a completion holds; one that cannot be read carries `format_error`."""
    actions, problem = _PARSERS[dialect](completion)
    return reply_of(completion, actions, problem, _MARKERS[dialect])


def reply_of(completion: Completion, actions: Sequence[Action], problem: str | None, marker: bytes) -> Reply:
    """The reply in which a scaffold read `actions`, or found `problem`; `marker` opens an action in the raw text."""
    return Reply(
        text=completion.text,
        actions=tuple(actions) if problem is None else (),
        format_error=problem,
        tool_calls=completion.tool_calls,
        reasoning=completion.reasoning,
        finish_reason=completion.finish_reason,
        usage=completion.usage,
        tokens=completion.tokens,
        logprob=_action_logprob(completion, marker),
        propensity=completion.propensity,
        model=completion.model,
    )


def _with_reason(problem: str, completion: Completion) -> str:
    cut = " The reply was cut at the token limit: be shorter." if completion.finish_reason == "length" else ""
    return f"Your reply could not be run: {problem}{cut}"


def _parse_calls(completion: Completion) -> tuple[list[Action], str | None]:
    if not completion.tool_calls:
        found = f"it calls no tool{_no_text(completion)}. Call `bash` with one string, `command`."
        return [], _with_reason(found, completion)
    actions = []
    for call in completion.tool_calls:
        command, problem = _command_of(call)
        if problem is not None:
            return [], _with_reason(problem, completion)
        actions.append(Action(command=command, call_id=call.id))
    return actions, None


def _no_text(completion: Completion) -> str:
    """Names a reply in which nothing can be recognised: see `Reply.is_unrecognised`."""
    if completion.text.strip():
        return ""
    return " and holds nothing but reasoning" if completion.reasoning else " and holds no text"


def _command_of(call: ToolCall) -> tuple[str, str | None]:
    if call.name != "bash":
        return "", f"there is no tool {call.name!r}; the only one is `bash`."
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return "", "the arguments of the call are not valid JSON."
    if not isinstance(arguments, dict) or not isinstance(arguments.get("command"), str):
        return "", "the arguments must be an object with one string, `command`."
    return clean_text(arguments["command"]), None


def _parse_fence(completion: Completion) -> tuple[list[Action], str | None]:
    blocks = _FENCE.findall(completion.text)
    if len(blocks) != 1:
        found = f"it holds {len(blocks)} ```bash blocks{_no_text(completion)}; exactly one is needed."
        return [], _with_reason(found, completion)
    return [Action(command=blocks[0])], None


_PARSERS = {"tool_call": _parse_calls, "text": _parse_fence}


def _action_logprob(completion: Completion, marker: bytes) -> float | None:
    """Sum over the tokens from the action's opening marker to the end; None where `said` cannot tell them apart
    or one of them has no log-probability."""
    if completion.tokens is None:
        return None
    try:
        start = first_token(completion.tokens, marker, completion.text, completion.reasoning)
    except Unclear:
        return None
    span = [value for value in completion.tokens.logprobs[start:] if value is not None]
    return math.fsum(span) if len(span) == len(completion.tokens.logprobs) - start else None
