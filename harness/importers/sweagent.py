"""SWE-agent's `.traj` files: steps under `trajectory`, the conversation under `history`, the end under `info`.

A step of `trajectory` is one model call. `history` holds no call that was asked again after an error: such a step adds
no message, and its reply is a format error. SWE-agent keeps no exit codes, runs its actions in one shell that lives as
long as the rollout, and has tools of its own in it; what is imported here can be looked at and compared, and is not
gone on with (see `continuing`). Written from public documentation and checked against files of our own making only.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.importers.answers import text_of
from harness.importers.mini import conversation_part, require_message, verdict
from harness.importers.protocol import Document, Imported, ImportFault, member
from harness.record import (
    Action,
    Circumstances,
    Ending,
    Exit,
    Observation,
    Provenance,
    Reply,
    Source,
    Spent,
    Step,
    Stop,
    Trajectory,
    Usage,
)

FORMAT = "swe-agent"

_STOPS = {
    "submitted": Stop.SUBMITTED,
    "exit_cost": Stop.COST_LIMIT,
    "exit_context": Stop.CONTEXT_FULL,
    "exit_format": Stop.FORMAT_ERRORS,
    "exit_total_execution_time": Stop.TIME_LIMIT,
}
_SUBMITTED = "submitted"

Raw = Mapping[str, Any]


class SweAgentImporter:
    """Reads `.traj`."""

    kind = "sweagent"

    def read(self, document: Document, agent: str) -> Imported:
        """The base that `document` holds. Raises ImportFault."""
        content = document.content
        items: list[Any] = member(content, "trajectory", list, "")
        info: Raw = member(content, "info", dict, "")
        status = info.get("exit_status")
        if not isinstance(status, str) or not status:
            raise ImportFault("info.exit_status", "empty: the rollout was never finished")
        if document.task_id is None:
            raise ImportFault("", "the file's name does not say the instance: it is <instance>.traj")
        opening, groups = _groups(content)
        steps, unmatched = _steps(items, groups, agent)
        base = Trajectory(
            id=f"{document.task_id}:{agent}",
            task_id=document.task_id,
            agent=agent,
            seed=None,
            sandbox="imported",
            start_digest=None,
            opening=opening,
            source=_source(document, status),
            steps=steps,
            ending=_ending(info, status, steps, document.resolved),
            provenance=Provenance(),
        )
        remarks = ["keeps no exit codes"]
        remarks += ["has a history that does not match its steps"] if unmatched else []
        return Imported(base, _model(content), tuple(remarks))


def _source(document: Document, status: str) -> Source:
    return Source(
        format=FORMAT,
        name=document.name,
        run=document.run,
        sha256=document.sha256,
        exit_status=status,
        rest=json.dumps([document.content], separators=(",", ":")),
    )


def _model(content: Raw) -> str:
    """Out of the settings, which newer files hold as JSON text."""
    config = content.get("replay_config")
    try:
        config = json.loads(config) if isinstance(config, str) else config
    except ValueError:
        return ""
    for key in ("agent", "model", "name"):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config if isinstance(config, str) else ""


def _groups(content: Raw) -> tuple[tuple[dict[str, Any], ...], list[list[Raw]]]:
    """The messages before the first reply, and each reply with what follows it; demonstrations are no replies."""
    history = content.get("history") or []
    if not isinstance(history, list):
        raise ImportFault("history", "not a list of messages")
    for number, message in enumerate(history):
        require_message(message, f"history[{number}]")
    opening: list[dict[str, Any]] = []
    groups: list[list[Raw]] = []
    for message in history:
        if message.get("role") == "assistant" and not message.get("is_demo"):
            groups.append([message])
        elif groups:
            groups[-1].append(message)
        else:
            opening.append(_sent(message))
    return tuple(opening), groups


def _sent(message: Raw) -> dict[str, Any]:
    """What a model is sent of a message of the history: the rest says what SWE-agent made of it."""
    kept: dict[str, Any] = {"role": message.get("role"), "content": message.get("content")}
    if message.get("tool_calls"):
        kept["tool_calls"] = message["tool_calls"]
    ids = message.get("tool_call_ids")
    if message.get("role") == "tool" and isinstance(ids, list) and ids:
        kept["tool_call_id"] = ids[0]
    return conversation_part(kept)


def _steps(items: Sequence[Any], groups: Sequence[list[Raw]], agent: str) -> tuple[tuple[Step, ...], int]:
    """The steps, and how many replies of the history belong to none."""
    waiting = list(groups)
    steps = []
    for index, item in enumerate(items, 1):
        if not isinstance(item, Mapping):
            raise ImportFault(f"trajectory[{index - 1}]", f"a {type(item).__name__}, not a step")
        group = waiting.pop(0) if waiting and _is_reply_of(waiting[0][0], item) else []
        steps.append(_step(index, item, group, agent))
    return tuple(steps), len(waiting)


def _is_reply_of(message: Raw, item: Raw) -> bool:
    said = str(item.get("response") or "")
    return text_of(message) == said or (bool(item.get("action")) and message.get("action") == item.get("action"))


def _step(index: int, item: Raw, group: Sequence[Raw], agent: str) -> Step:
    command = item.get("action")
    actions = (Action(command=command.removesuffix("\n")),) if isinstance(command, str) and command.strip() else ()
    seconds = item.get("execution_time")
    return Step(
        index=index,
        agent=agent,
        probability=1.0,
        seed=None,
        reply=Reply(
            text=str(item.get("response") or ""),
            actions=actions,
            format_error=None if actions else "it holds no action",
            reasoning=str(item["thought"]) if item.get("thought") else None,
            finish_reason="",
            usage=Usage(),
            model="",
        ),
        observations=tuple(_observed(item) for _ in actions),
        messages=tuple(_sent(message) for message in group),
        state_digest=None,
        circumstances=Circumstances(
            started_at="",
            model_seconds=None,
            action_seconds=(float(seconds),) if actions and isinstance(seconds, int | float) else (),
        ),
    )


def _observed(item: Raw) -> Observation:
    raw = str(item.get("observation") or "").encode("utf-8")
    return Observation(
        output=raw,
        exit_code=None,
        ended=Exit.UNKNOWN,
        size=len(raw),
        sha256=hashlib.sha256(raw).hexdigest(),
        kept="text",
    )


def _ending(info: Raw, status: str, steps: Sequence[Step], resolved: bool | None) -> Ending:
    """`submitted (exit_cost)` is a limit's end, with the tree as it then stood submitted for the agent."""
    submission = info.get("submission")
    submission = submission if isinstance(submission, str) else ""
    stats = info.get("model_stats")
    return Ending(
        spent=Spent(
            calls=_number(stats, "api_calls") or len(steps),
            input_tokens=_number(stats, "tokens_sent") or 0,
            output_tokens=_number(stats, "tokens_received") or 0,
            seconds=sum(sum(step.circumstances.action_seconds) for step in steps),
        ),
        stop=_STOPS.get(_reason(status), Stop.BROKEN_OFF),
        submission=submission if status == _SUBMITTED else None,
        patch=submission.encode("utf-8"),
        graded="submission",
        outcome=verdict(resolved),
    )


def _reason(status: str) -> str:
    """What ended the agent first: it stands in brackets after a submission that was made on its behalf."""
    before, bracket, inside = status.partition("(")
    return inside.rstrip(")").strip() if bracket else before.strip()


def _number(stats: object, key: str) -> int | None:
    value = stats.get(key) if isinstance(stats, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
