"""mini-swe-agent's trajectory files, formats 1 and 1.1: one message list becomes steps.

A step is one model call. Format 1 keeps a reply that could not be read; format 1.1 drops it and keeps only the message
that says so: such a step has no reply, and the conversation that a branch is given lacks it as the original's did.
What the model is sent of a message is the message without `extra`, without members that are null and without the
stream index of a call: neither is part of a conversation, and strict servers refuse both.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.difference import difference
from harness.exporters.mini import FORMAT_1, FORMAT_1_1, imported_rollout, mini_document
from harness.exporters.statuses import SUBMITTED, stop_of
from harness.importers.answers import NOTHING_KNOWN, observation, pattern_of, text_of
from harness.importers.clocks import Moment, read_moment, seconds_between
from harness.importers.protocol import Document, Imported, ImportFault, member
from harness.record import (
    Action,
    Circumstances,
    Ending,
    Observation,
    Outcome,
    Provenance,
    Reply,
    Source,
    Spent,
    Step,
    ToolCall,
    Trajectory,
    Usage,
)

FORMATS = (FORMAT_1, FORMAT_1_1)
_FENCE = r"```bash\s*\n(.*?)\n```"
"""How format 1 finds actions, unless its settings say otherwise."""

Raw = Mapping[str, Any]


class MiniImporter:
    """Reads `.traj.json`."""

    kind = "mini"

    def read(self, document: Document, agent: str) -> Imported:
        """The base that `document` holds. Raises ImportFault."""
        log = _Log(document)
        turns = list(log.turns())
        steps = tuple(step for step in _steps(turns, log, agent))
        base = _base(log, steps, agent)
        source = Source(
            format=log.format,
            name=document.name,
            run=document.run,
            sha256=document.sha256,
            exit_status=log.status,
            config=json.dumps(log.info.get("config")),
            rest="0",
        )
        made = mini_document(imported_rollout(base, source))
        rest = json.dumps(difference(document.content, made), separators=(",", ":"))
        source = source.model_copy(update={"rest": rest})
        return Imported(base.model_copy(update={"source": source}), log.model, tuple(_remarks(log, turns, steps)))


@dataclass
class _Turn:
    """A reply, or none where it was dropped, and the messages up to the next."""

    reply: Raw | None
    answers: list[Raw] = field(default_factory=list)
    place: str = ""
    actions: tuple[Action, ...] = ()


class _Log:
    """The parts of a document, checked."""

    def __init__(self, document: Document) -> None:
        content = document.content
        if not isinstance(content, Mapping):
            raise ImportFault("", f"a {type(content).__name__}, not a trajectory")
        self.format: str = member(content, "trajectory_format", str, "")
        if self.format not in FORMATS:
            raise ImportFault("trajectory_format", f"{self.format!r} is not known; known: {', '.join(FORMATS)}")
        self.info: Raw = member(content, "info", dict, "")
        self.status = self._exit_status()
        self.submission = self._submitted()
        self.messages: list[Raw] = member(content, "messages", list, "")
        for number, message in enumerate(self.messages):
            require_message(message, f"messages[{number}]")
        task_id = content.get("instance_id") or document.task_id
        if not isinstance(task_id, str):
            raise ImportFault("instance_id", "missing, and the file's name does not say it")
        self.task_id = task_id
        self.resolved = document.resolved
        self._read_settings()
        self.opening = self._count_opening()
        self.closing = self._find_closing()

    def _exit_status(self) -> str:
        status = self.info.get("exit_status")
        if not isinstance(status, str) or not status:
            raise ImportFault("info.exit_status", "empty: the rollout was never finished")
        return status

    def _submitted(self) -> str:
        submission = self.info.get("submission") or ""
        if not isinstance(submission, str):
            raise ImportFault(
                "info.submission", f"of type {type(submission).__name__}, which this format does not have"
            )
        return submission

    def _read_settings(self) -> None:
        agent, model = self.section("agent"), self.section("model")
        self.timed_out = pattern_of(agent.get("timeout_template"))
        regex = agent.get("action_regex") or model.get("action_regex") or _FENCE
        try:
            self.action_regex = re.compile(regex, re.DOTALL)
        except (re.error, TypeError) as error:
            raise ImportFault("info.config", f"action_regex is no regular expression: {error}") from None
        self.model = str(model.get("model_name") or "")

    def section(self, name: str) -> Raw:
        """A section of the settings; empty where the log has none."""
        return _mapping(_mapping(self.info.get("config")).get(name))

    def _count_opening(self) -> int:
        """Messages before the first step: the system's, and one of the user with the task."""
        count = 0
        while count < len(self.messages) and self.messages[count].get("role") == "system":
            count += 1
        first = self.messages[count] if count < len(self.messages) else {}
        return count + (first.get("role") == "user" and not _is_format_error(first))

    def _find_closing(self) -> int:
        """Index of the first message after the last step: what says how it ended, and was never sent to a model."""
        end = len(self.messages)
        while end > self.opening and self.messages[end - 1].get("role") == "exit":
            end -= 1
        if end < len(self.messages) or end == self.opening:
            return end
        last, before = self.messages[end - 1], self.messages[end - 2]
        if last.get("role") != "user" or self.format != FORMAT_1:
            return end
        submits = self.status == SUBMITTED and text_of(last) == self.submission
        stray = self.status != SUBMITTED and before.get("role") != "assistant"
        return end - 1 if submits or stray else end

    def turns(self) -> Iterator[_Turn]:
        """The steps' messages."""
        turn: _Turn | None = None
        for number in range(self.opening, self.closing):
            message, place = self.messages[number], f"messages[{number}]"
            if _is_reply(message):
                if turn is not None:
                    yield turn
                turn = _Turn(message, place=place, actions=self._actions(message, place))
            elif turn is not None and _belongs(message, turn):
                turn.answers.append(message)
            else:
                if turn is not None:
                    yield turn
                turn = _Turn(None, [message], place)
        if turn is not None:
            yield turn

    def _actions(self, message: Raw, place: str) -> tuple[Action, ...]:
        extra = message.get("extra")
        if isinstance(extra, Mapping) and isinstance(extra.get("actions"), list):
            return tuple(
                _logged_action(action, f"{place}.extra.actions[{number}]")
                for number, action in enumerate(extra["actions"])
            )
        if self.format == FORMAT_1:
            found = self.action_regex.findall(text_of(message))
            return (Action(command=found[0].strip()),) if len(found) == 1 else ()
        return _called(_tool_calls(message))


def require_message(message: object, place: str) -> None:
    """ImportFault for what could be no message of a conversation."""
    if not isinstance(message, Mapping):
        raise ImportFault(place, f"a {type(message).__name__}, not a message")
    if not isinstance(message.get("role", ""), str):
        raise ImportFault(f"{place}.role", f"of type {type(message['role']).__name__}, not a text")
    try:
        json.dumps(conversation_part(message), allow_nan=False)
    except ValueError:
        raise ImportFault(place, "holds a number that is not finite: it could not be sent to a model") from None


def _is_reply(message: Raw) -> bool:
    return message.get("role") == "assistant" or message.get("object") == "response"


def _is_format_error(message: Raw) -> bool:
    extra = message.get("extra")
    return isinstance(extra, Mapping) and extra.get("interrupt_type") == "FormatError"


def _is_interruption(message: Raw) -> bool:
    """Something else than an answer: a person spoke in between."""
    extra = message.get("extra")
    return isinstance(extra, Mapping) and "interrupt_type" in extra and not _is_format_error(message)


def _belongs(message: Raw, turn: _Turn) -> bool:
    """Whether `message` answers `turn`'s reply, rather than a reply that was dropped."""
    if message.get("role") == "tool" or message.get("type") == "function_call_output" or _is_interruption(message):
        return True
    if turn.reply is None:
        return False
    answered = sum(not _is_interruption(answer) for answer in turn.answers)
    if _is_format_error(message):
        return not turn.actions and not answered
    return answered < max(len(turn.actions), 1)


def _logged_action(action: object, place: str) -> Action:
    command = member(action, "command", str, place)
    call_id = action.get("tool_call_id") if isinstance(action, Mapping) else None
    return Action(command=command, call_id=call_id if isinstance(call_id, str) else None)


def _called(calls: Sequence[ToolCall]) -> tuple[Action, ...]:
    """The actions of calls; none where one of them cannot be read."""
    actions = []
    for call in calls:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            return ()
        if call.name != "bash" or not isinstance(arguments, dict) or not isinstance(arguments.get("command"), str):
            return ()
        actions.append(Action(command=arguments["command"], call_id=call.id))
    return tuple(actions)


def _tool_calls(message: Raw) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls") or []
    if "output" in message and isinstance(message["output"], list):  # OpenAI's Responses form
        calls = [
            {"id": item.get("call_id"), "function": item}
            for item in message["output"]
            if isinstance(item, Mapping) and item.get("type") == "function_call"
        ]
    made = map(_tool_call, calls if isinstance(calls, list) else ())
    return tuple(call for call in made if call is not None)


def _tool_call(call: object) -> ToolCall | None:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return None
    name, arguments = function.get("name"), function.get("arguments")
    return ToolCall(id=str(call.get("id") or ""), name=str(name or ""), arguments=str(arguments or ""))


def conversation_part(message: Raw) -> dict[str, Any]:
    """What a model is sent of a logged message."""
    if "role" not in message:
        return _translated(message)
    kept = {key: value for key, value in message.items() if key != "extra" and (value is not None or key == "content")}
    if isinstance(kept.get("tool_calls"), list):
        kept["tool_calls"] = [
            {key: value for key, value in call.items() if key != "index"} if isinstance(call, Mapping) else call
            for call in kept["tool_calls"]
        ]
    return kept


def _translated(message: Raw) -> dict[str, Any]:
    """An item of OpenAI's Responses form as a chat message."""
    if message.get("type") == "function_call_output":
        return {"role": "tool", "tool_call_id": message.get("call_id"), "content": text_of(message)}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in _tool_calls(message)
    ]
    said: dict[str, Any] = {"role": "assistant", "content": _said(message)}
    return said | ({"tool_calls": calls} if calls else {})


def _said(message: Raw) -> str:
    items = message.get("output") if isinstance(message.get("output"), list) else None
    if items is None:
        return text_of(message)
    return "".join(text_of(item) for item in items if isinstance(item, Mapping) and item.get("type") == "message")


def _steps(turns: Sequence[_Turn], log: _Log, agent: str) -> Iterator[Step]:
    before: Moment | None = None
    for index, turn in enumerate(turns, 1):
        reply = _reply(turn, log)
        last = index == len(turns)
        seen = () if reply.format_error is not None else _observations(turn, log, submits=last)
        yield Step(
            index=index,
            agent=agent,
            probability=1.0,
            seed=None,
            reply=reply,
            observations=seen,
            messages=tuple(conversation_part(message) for message in (turn.reply, *turn.answers) if message),
            state_digest=None,
            circumstances=_circumstances(turn, before),
        )
        before = _moment(turn.answers[-1]) if turn.answers else None


def _reply(turn: _Turn, log: _Log) -> Reply:
    message = turn.reply or {}
    response = _response(message, turn)
    choice = _first_choice(response)
    said = _mapping(choice.get("message"))
    usage = response.get("usage")
    problem = None
    if not turn.actions:
        problem = "".join(text_of(answer) for answer in turn.answers[:1]) or "it holds no action"
    return Reply(
        text=_said(message) or (text_of(said) if turn.reply is None else ""),
        actions=turn.actions,
        format_error=problem,
        tool_calls=_tool_calls(message) or (_tool_calls(said) if turn.reply is None else ()),
        reasoning=_reasoning(message) or _reasoning(said),
        finish_reason=str(choice.get("finish_reason") or ""),
        usage=Usage(input_tokens=_count(usage, "prompt_tokens"), output_tokens=_count(usage, "completion_tokens")),
        model=str(response.get("model") or ""),
    )


def _response(message: Raw, turn: _Turn) -> Raw:
    """The server's whole answer where the log keeps it: with the reply, or with what says it could not be read."""
    for holder in (message, *turn.answers[:1]):
        extra = holder.get("extra")
        response = extra.get("response") if isinstance(extra, Mapping) else None
        if isinstance(response, Mapping):
            return response
    return {}


def _first_choice(response: Raw) -> Raw:
    choices = response.get("choices")
    return _mapping(choices[0]) if isinstance(choices, list) and choices else {}


def _mapping(value: object) -> Raw:
    return value if isinstance(value, Mapping) else {}


def _reasoning(message: Raw) -> str | None:
    for key in ("reasoning_content", "reasoning"):
        if isinstance(message.get(key), str) and message[key]:
            return str(message[key])
    return None


def _count(usage: object, key: str) -> int | None:
    value = usage.get(key) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _observations(turn: _Turn, log: _Log, *, submits: bool) -> tuple[Observation, ...]:
    """One an action. Of an action without an answer nothing is known, but it was run: mini-swe-agent drops all answers
    of a turn that submits. Where such a turn has some, the log is ours, and what follows them was not run."""
    answers = _by_id(turn) or _in_order(turn)
    if submits and log.status == SUBMITTED:
        while any(answers) and answers[-1] is None:
            answers.pop()
    return tuple(NOTHING_KNOWN if answer is None else observation(answer, log.timed_out) for answer in answers)


def _answers(turn: _Turn) -> list[Raw]:
    return [answer for answer in turn.answers if not _is_interruption(answer)]


def _by_id(turn: _Turn) -> list[Raw | None]:
    """Each action's answer, None where it has none; empty where an answer does not name one of the calls."""
    by_id = {_answered_id(answer): answer for answer in _answers(turn)}
    known = {action.call_id for action in turn.actions}
    return [by_id.get(action.call_id or "") for action in turn.actions] if by_id.keys() <= known else []


def _in_order(turn: _Turn) -> list[Raw | None]:
    answers: list[Raw | None] = [*_answers(turn)]
    return (answers + [None] * len(turn.actions))[: len(turn.actions)]


def _answered_id(answer: Raw) -> str:
    return str(answer.get("tool_call_id") or answer.get("call_id") or "")


def _moment(message: Raw | None) -> Moment | None:
    extra = message.get("extra") if message is not None else None
    return read_moment(extra.get("timestamp")) if isinstance(extra, Mapping) else None


def _circumstances(turn: _Turn, before: Moment | None) -> Circumstances:
    """A log's times are those at which its messages were made; what lies between is what a call or an action took."""
    ended = _moment(turn.reply)
    response = _response(turn.reply or {}, turn)
    started = read_moment(response.get("created")) or ended
    model_seconds, naive = seconds_between(before, ended)
    answered = _moment(turn.answers[0]) if len(turn.answers) == len(turn.actions) == 1 else None
    action_seconds, naive_too = seconds_between(ended, answered)
    usage = response.get("usage")
    return Circumstances(
        started_at=started.utc.isoformat() if started is not None else "",
        naive_clock=naive or naive_too or (started is not None and started.naive),
        model_seconds=model_seconds,
        action_seconds=() if action_seconds is None else (action_seconds,),
        cached_prompt_tokens=_count(usage.get("prompt_tokens_details"), "cached_tokens")
        if isinstance(usage, Mapping)
        else None,
    )


def _base(log: _Log, steps: tuple[Step, ...], agent: str) -> Trajectory:
    return Trajectory(
        id=f"{log.task_id}:{agent}",
        task_id=log.task_id,
        agent=agent,
        seed=None,
        sandbox="imported",
        start_digest=None,
        opening=tuple(conversation_part(message) for message in log.messages[: log.opening]),
        steps=steps,
        ending=_ending(log, steps),
        provenance=Provenance(started_at=steps[0].circumstances.started_at if steps else ""),
    )


def _ending(log: _Log, steps: Sequence[Step]) -> Ending:
    stats = _mapping(log.info.get("model_stats"))
    submitted = log.status == SUBMITTED
    return Ending(
        spent=_spent(stats, steps),
        stop=stop_of(log.status, stats, log.section("agent")),
        submission=log.submission if submitted else None,
        patch=log.submission.encode("utf-8"),
        graded="submission",
        outcome=verdict(log.resolved),
    )


def verdict(resolved: bool | None) -> Outcome:
    """The outcome of an imported rollout: that of its own grading, or none."""
    if resolved is None:
        return Outcome(status="unscored", detail="imported without a verdict")
    return Outcome(status="resolved" if resolved else "unresolved", detail="as its own grading said")


def _spent(stats: Raw, steps: Sequence[Step]) -> Spent:
    """Calls as the log counts them: it counts one that never came to an answer."""
    calls = _count(stats, "api_calls")
    in_a_row = 0
    for step in steps:
        in_a_row = in_a_row + 1 if step.reply.format_error is not None else 0
    timed = [(step.circumstances.model_seconds or 0.0) + sum(step.circumstances.action_seconds) for step in steps]
    return Spent(
        calls=len(steps) if calls is None else calls,
        input_tokens=sum(step.reply.usage.input_tokens or 0 for step in steps),
        output_tokens=sum(step.reply.usage.output_tokens or 0 for step in steps),
        seconds=sum(timed),
        format_errors_in_a_row=in_a_row,
    )


def _remarks(log: _Log, turns: Sequence[_Turn], steps: Sequence[Step]) -> Iterator[str]:
    stats = log.info.get("model_stats")
    calls = _count(stats, "api_calls")
    if calls is not None and calls != len(steps):
        yield "counts another number of calls than it has replies and format errors"
    if any(step.reply.format_error is not None and not step.reply.text for step in steps):
        yield "holds format errors whose replies were not kept"
    if any(seen.kept == "nothing" for step in steps[:-1] for seen in step.observations):
        yield "holds actions without an answer: they were run, and nothing is known of what came back"
    if any(len(turn.actions) > 1 and not _by_id(turn) for turn in turns):
        yield "names no calls in its answers: those of several calls in a turn were paired in order"
    if any(step.circumstances.naive_clock for step in steps):
        yield "gives times without a zone, taken as UTC"
    if any(seen.kept == "shown" for step in steps for seen in step.observations):
        yield "renders observations in a way that is not known: their exit codes and outputs cannot be compared"
