"""Makes small records for tests. Values only; nothing here pretends to be a model or a sandbox."""

import hashlib
from collections.abc import Sequence
from typing import Literal

from harness.record import (
    Action,
    Arm,
    Branch,
    Circumstances,
    Ending,
    ForkPoint,
    Observation,
    Outcome,
    PrefixCheck,
    Provenance,
    Reply,
    Spent,
    Step,
    Stop,
    Trajectory,
    Usage,
    prefix_digest,
)

FORMAT_ERROR = "!"
"""A command that stands for a reply that could not be read."""


def make_step(index: int, command: str, output: bytes = b"", agent: str = "a") -> Step:
    bad = command == FORMAT_ERROR
    seen = Observation(output=output, exit_code=0, size=len(output), sha256=hashlib.sha256(output).hexdigest())
    reply = Reply(
        text="prose" if bad else "",
        actions=() if bad else (Action(command=command),),
        format_error="unreadable" if bad else None,
        finish_reason="stop",
        usage=Usage(input_tokens=10, output_tokens=2),
        model="m",
    )
    return Step(
        index=index,
        agent=agent,
        probability=1.0,
        seed=index,
        reply=reply,
        observations=() if bad else (seen,),
        state_digest="s",
        processes=(),
        circumstances=Circumstances(started_at="2026-01-01T00:00:00+00:00", model_seconds=0.5, action_seconds=(0.25,)),
    )


def make_ending(resolved: bool | None, stop: Stop = Stop.SUBMITTED, calls: int = 0) -> Ending:
    status: Literal["resolved", "unresolved", "unscored"] = "unscored"
    if resolved is not None:
        status = "resolved" if resolved else "unresolved"
    return Ending(spent=Spent(calls=calls), stop=stop, patch=b"", outcome=Outcome(status=status))


def make_base(commands: Sequence[str], resolved: bool | None = False, task: str = "t", agent: str = "a") -> Trajectory:
    return Trajectory(
        id=f"{task}:{agent}",
        task_id=task,
        agent=agent,
        seed=1,
        sandbox="local",
        start_digest="s",
        steps=tuple(make_step(number, command) for number, command in enumerate(commands, 1)),
        ending=make_ending(resolved),
        provenance=Provenance(),
    )


def make_branch(
    base: Trajectory,
    step: int,
    arm: Literal["control", "swap"],
    replicate: int,
    commands: Sequence[str],
    resolved: bool | None = False,
    stop: Stop = Stop.SUBMITTED,
    calls_left: int | None = 30,
) -> Branch:
    fork = ForkPoint(
        base_id=base.id,
        step=step,
        rule="absolute",
        depth=f"step {step}",
        anticipating=False,
        prefix_digest=prefix_digest(base, step),
        calls_left=calls_left,
    )
    return Branch(
        id=f"{base.task_id}:up@{step}:{arm}#{replicate}",
        task_id=base.task_id,
        direction="up",
        fork=fork,
        arm=Arm(name=arm, agent="b" if arm == "swap" else base.agent),
        replicate=replicate,
        seed=replicate,
        sandbox="local",
        prefix=PrefixCheck(
            how="reexecute",
            actions=step - 1,
            exit_codes_equal=step - 1,
            outputs_equal=step - 1,
            normalised_equal=step - 1,
            states=step,
            states_equal=step,
        ),
        steps=tuple(make_step(step + place, command) for place, command in enumerate(commands)),
        ending=make_ending(resolved, stop),
        provenance=Provenance(),
    )
