"""The main loop. A base and a branch are the same loop with a different start.

Limits are checked before each call. A format error costs a call, is kept as a step and is shown to the model;
so many in a row stop the rollout. A submission is recognised here, as the scaffold says, and nowhere else.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.agent import Agent
from harness.config import LimitsSection
from harness.errors import ContextOverflow
from harness.model.protocol import Message
from harness.record import Action, Observation, Spent, Step, Stop, Task, seed_for
from harness.routing import Choice, RoutingPolicy
from harness.sandbox.protocol import Sandbox
from harness.scaffold.protocol import Scaffold


@dataclass(frozen=True)
class Start:
    """Where a rollout starts: a base at nothing, a branch at its fork."""

    history: tuple[Step, ...]
    spent: Spent
    opening: tuple[Message, ...] | None = None
    """The conversation's first messages where they are not the scaffold's own: those of an imported base."""


NOTHING_YET = Start((), Spent())


@dataclass(frozen=True)
class Continuation:
    """What a rollout did from its start on."""

    steps: tuple[Step, ...]
    spent: Spent
    """What the start brought along included."""
    stop: Stop
    submission: str | None
    refused_request: str | None = None
    """Digest of the request that no longer fitted; None unless the context was full."""


def rollout(
    task: Task,
    policy: RoutingPolicy,
    agents: Mapping[str, Agent],
    sandbox: Sandbox,
    *,
    limits: LimitsSection,
    seed: int,
    start: Start = NOTHING_YET,
    on_step: Callable[[Step], None] = lambda step: None,
    snapshot: Callable[[Sandbox], str | None] = lambda sandbox: None,
) -> Continuation:
    """Let agents act until something stops them. Raises RolloutError when infrastructure fails.

    `snapshot` keeps the sandbox's state after each step and gives its address, None where it does not.
    """
    history, spent, submission, refused = list(start.history), start.spent, None, None
    while (stop := limit_reached(spent, limits)) is None:
        choice = policy.choose(len(history) + 1, seed=seed)
        try:
            step = take_step(
                task, choice, agents, sandbox, history,
                limits=limits, seed=seed, opening=start.opening, snapshot=snapshot,
            )  # fmt: skip
        except ContextOverflow as overflow:
            stop, refused = Stop.CONTEXT_FULL, overflow.request_digest
            break
        history.append(step)
        on_step(step)
        spent = spend(spent, step)
        submission = submission_of(step, agents[choice.agent].scaffold)
        if submission is not None:
            stop = Stop.SUBMITTED
            break
    return Continuation(tuple(history[len(start.history) :]), spent, stop, submission, refused)


def take_step(
    task: Task,
    choice: Choice,
    agents: Mapping[str, Agent],
    sandbox: Sandbox,
    history: Sequence[Step],
    *,
    limits: LimitsSection,
    seed: int,
    opening: Sequence[Message] | None,
    snapshot: Callable[[Sandbox], str | None],
) -> Step:
    """One model call and the actions that it asks for."""
    step_number = len(history) + 1
    step_seed = seed_for(seed, step_number)
    agent = agents[choice.agent]
    decision = agent.decide(task, history, seed=step_seed, opening=opening)
    observations, durations = _act(decision.reply.actions, sandbox, agent.scaffold, limits.action_seconds)
    return Step(
        index=step_number,
        agent=choice.agent,
        probability=choice.probability,
        seed=step_seed,
        reply=decision.reply,
        observations=tuple(observations),
        request_digest=decision.request_digest,
        state_digest=sandbox.digest(),
        processes=sandbox.processes(),
        circumstances=decision.circumstances.model_copy(
            update={"action_seconds": tuple(durations), "snapshot": snapshot(sandbox)}
        ),
    )


def _act(
    actions: Sequence[Action], sandbox: Sandbox, scaffold: Scaffold, timeout_s: float
) -> tuple[list[Observation], list[float]]:
    """Run `actions` in order; a submission ends the turn."""
    observations: list[Observation] = []
    durations: list[float] = []
    for action in actions:
        clock = time.monotonic()
        seen = sandbox.act(action.command, timeout_s=timeout_s)
        durations.append(time.monotonic() - clock)
        observations.append(scaffold.observe(seen, action, timeout_s=timeout_s))
        if scaffold.submission_of(seen) is not None:
            break
    return observations, durations


def submission_of(step: Step, scaffold: Scaffold) -> str | None:
    """What `step` submits; None when it does not."""
    return scaffold.submission_of(step.observations[-1]) if step.observations else None


def spend(spent: Spent, step: Step) -> Spent:
    """`spent` after `step`."""
    usage, when = step.reply.usage, step.circumstances
    return Spent(
        calls=spent.calls + 1,
        input_tokens=spent.input_tokens + (usage.input_tokens or 0),
        output_tokens=spent.output_tokens + (usage.output_tokens or 0),
        seconds=spent.seconds + (when.model_seconds or 0.0) + sum(when.action_seconds),
        format_errors_in_a_row=spent.format_errors_in_a_row + 1 if step.reply.format_error is not None else 0,
    )


def limit_reached(spent: Spent, limits: LimitsSection) -> Stop | None:
    """The limit that forbids another call; None when one may be made."""
    if spent.format_errors_in_a_row >= limits.format_errors:
        return Stop.FORMAT_ERRORS
    if limits.calls is not None and spent.calls >= limits.calls:
        return Stop.CALL_LIMIT
    if limits.tokens is not None and spent.output_tokens >= limits.tokens:
        return Stop.TOKEN_LIMIT
    if limits.seconds is not None and spent.seconds >= limits.seconds:
        return Stop.TIME_LIMIT
    return None
