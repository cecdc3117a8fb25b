"""A rollout in mini-swe-agent's trajectory format: one message list, with what is not conversation under `extra`.

An imported rollout comes out as it went in: what the record has no place for is in its `source.rest`. A branch is its
base's messages before the fork and then its own. What the format has no place for, and ours has, is under
`extra.forkroll`: without it bytes that are not UTF-8, signals and streams that were cut would be lost.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from harness.difference import restore
from harness.exporters.statuses import SUBMITTED, status_of
from harness.record import Ending, Exit, Observation, Reply, Source, Step, Trajectory

FORMAT_1, FORMAT_1_1 = "mini-swe-agent-1", "mini-swe-agent-1.1"

Message = Mapping[str, Any]
MessagesOf = Callable[[Step], Sequence[Message]]


@dataclass(frozen=True)
class Rollout:
    """What an export is made of."""

    task_id: str
    opening: Sequence[Message]
    steps: Sequence[Step]
    messages_of: MessagesOf
    """The messages that a step added."""
    ending: Ending
    format: str = FORMAT_1_1
    config: Mapping[str, Any] | None = field(default_factory=dict)
    """Goes to info.config."""
    exit_status: str | None = None
    """None: follows from the ending."""


def mini_document(rollout: Rollout) -> dict[str, Any]:
    """`rollout` as the content of a traj.json. Costs are not known to us and are null."""
    old = rollout.format == FORMAT_1
    status = status_of(rollout.ending.stop) if rollout.exit_status is None else rollout.exit_status
    messages = [dict(message) for message in rollout.opening]
    for step in rollout.steps:
        messages += step_messages(step, rollout.messages_of(step), old=old and step.messages is not None)
    return {
        "info": {
            "model_stats": {"instance_cost": None, "api_calls": rollout.ending.spent.calls},
            "config": rollout.config,
            "mini_version": None,
            "exit_status": status,
            "submission": rollout.ending.submission or "",
        },
        "messages": messages + _closing(status, rollout.ending.submission or "", old),
        "trajectory_format": rollout.format,
        "instance_id": rollout.task_id,
    }


def imported_rollout(base: Trajectory, source: Source) -> Rollout:
    """An imported base as an export is made of it: nothing is asked of a scaffold."""
    return Rollout(
        task_id=base.task_id,
        opening=base.opening or (),
        steps=base.steps,
        messages_of=lambda step: step.messages or (),
        ending=base.ending,
        format=source.format,
        config=json.loads(source.config),
        exit_status=source.exit_status,
    )


def restored_document(base: Trajectory, source: Source) -> dict[str, Any]:
    """The very document that `base` was imported from."""
    document: dict[str, Any] = restore(mini_document(imported_rollout(base, source)), json.loads(source.rest))
    return document


def step_messages(step: Step, messages: Sequence[Message], *, old: bool) -> list[dict[str, Any]]:
    """`messages` of `step` with their `extra`; a log of format 1 (`old`) has it at replies alone."""
    told: list[dict[str, Any]] = []
    answers = 0
    for message in messages:
        if message.get("role") == "assistant":
            told.append({**message, "extra": _reply_extra(step, old=old)})
            continue
        extra = {} if old else {"extra": _answer_extra(step, answers)}
        told.append({**message, **extra})
        answers += 1
    if answers == len(told) and answers and not old and step.reply.format_error is not None:
        told[0]["extra"] |= {"response": _response(step.reply) | _created(step)}  # the reply is in no message
    return told


def _closing(status: str, submission: str, old: bool) -> list[dict[str, Any]]:
    content = submission if status == SUBMITTED else ("" if old else status)
    if old:
        return [{"role": "user", "content": content}]
    return [{"role": "exit", "content": content, "extra": {"exit_status": status, "submission": submission}}]


def _reply_extra(step: Step, *, old: bool) -> dict[str, Any]:
    response = _response(step.reply) | _created(step)
    if old:
        return {"response": response}
    actions = [_action(action.command, action.call_id) for action in step.reply.actions]
    return {"actions": actions, "response": response, **_ended_at(step)}


def _action(command: str, call_id: str | None) -> dict[str, Any]:
    return {"command": command} if call_id is None else {"command": command, "tool_call_id": call_id}


def _response(reply: Reply) -> dict[str, Any]:
    calls = [
        {"function": {"arguments": call.arguments, "name": call.name}, "id": call.id, "type": "function"}
        for call in reply.tool_calls
    ]
    message: dict[str, Any] = {"content": reply.text, "role": "assistant"}
    message |= {"tool_calls": calls} if calls else {}
    message |= {} if reply.reasoning is None else {"reasoning_content": reply.reasoning}
    used = reply.usage
    counts = {"completion_tokens": used.output_tokens, "prompt_tokens": used.input_tokens}
    return {
        "model": reply.model,
        "object": "chat.completion",
        "choices": [{"finish_reason": reply.finish_reason, "index": 0, "message": message}],
        "usage": counts,
    }


def _created(step: Step) -> dict[str, Any]:
    """Whole seconds, as servers say it."""
    started = step.circumstances.started_at
    return {"created": int(datetime.fromisoformat(started).timestamp())} if started else {}


def _ended_at(step: Step) -> dict[str, Any]:
    when = step.circumstances
    if not when.started_at:
        return {}
    return {"timestamp": datetime.fromisoformat(when.started_at).timestamp() + (when.model_seconds or 0.0)}


def _answer_extra(step: Step, number: int) -> dict[str, Any]:
    """Of the `number`-th message that answers the reply."""
    if step.reply.format_error is not None:
        return {"interrupt_type": "FormatError"}
    if number >= len(step.observations):
        return {}
    seen = step.observations[number]
    extra = {
        "raw_output": seen.output.decode("utf-8", "replace"),
        "returncode": _returncode(seen),
        "exception_info": _exception(seen),
    }
    return extra | ({"forkroll": _ours(seen)} if seen.kept == "bytes" else {})


def _returncode(seen: Observation) -> int | None:
    """As a shell in a container reports it; -1 where mini-swe-agent itself ended the command."""
    if seen.signal is not None:
        return 128 + seen.signal
    return -1 if seen.ended in (Exit.TIME_LIMIT, Exit.DISK_LIMIT, Exit.NOT_RUN) else seen.exit_code


def _exception(seen: Observation) -> str:
    return "" if seen.ended in (Exit.EXITED, Exit.SIGNAL, Exit.UNKNOWN) else str(seen.ended.value).replace("_", " ")


def _ours(seen: Observation) -> dict[str, Any]:
    """The whole observation, its output only where `raw_output` does not hold it exactly."""
    exact = seen.output.decode("utf-8", "replace").encode("utf-8") == seen.output
    return seen.model_dump(mode="json", exclude={"output", "kept"} if exact else {"kept"})
