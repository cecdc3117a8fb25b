"""Where a base is forked, and how a sandbox is brought there with proof.

Every rule says whether it is anticipating: whether choosing step k needs to know the base at or after k
(estimands M1). Under an anticipating rule the base is no draw from the control's distribution.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from harness.config import ForksSection, LimitsSection, Study
from harness.loop import Start, spend
from harness.record import ForkPoint, Observation, PrefixCheck, Spent, Step, Trajectory, prefix_digest
from harness.sandbox.protocol import Image, Sandbox, SandboxProvider


@dataclass(frozen=True)
class Point:
    """A step and the rule's name for it."""

    step: int
    depth: str


@dataclass(frozen=True)
class ForkRule:
    """How steps are chosen from a base."""

    anticipating: bool
    points: Callable[[Sequence[Step], Sequence[float], LimitsSection], list[Point]]


def _percent(fraction: float) -> str:
    return f"{fraction * 100:g}%"


def _parsed_turns(steps: Sequence[Step]) -> list[int]:
    """Step numbers of the replies that parsed: the paper counts these, a format error leaves no assistant message."""
    return [step.index for step in steps if step.reply.format_error is None]


def _paper_fraction(steps: Sequence[Step], at: Sequence[float], limits: LimitsSection) -> list[Point]:
    turns = _parsed_turns(steps)
    return [Point(turns[max(1, round(f * len(turns))) - 1], _percent(f)) for f in at if turns]


def _fraction(steps: Sequence[Step], at: Sequence[float], limits: LimitsSection) -> list[Point]:
    return [Point(max(1, round(f * len(steps))), _percent(f)) for f in at]


def _call_fraction(steps: Sequence[Step], at: Sequence[float], limits: LimitsSection) -> list[Point]:
    return [Point(max(1, round(f * (limits.calls or 0))), _percent(f)) for f in at]


def _absolute(steps: Sequence[Step], at: Sequence[float], limits: LimitsSection) -> list[Point]:
    return [Point(int(step), f"step {int(step)}") for step in at]


def _every(steps: Sequence[Step], at: Sequence[float], limits: LimitsSection) -> list[Point]:
    period = int(at[0])
    return [Point(step, f"step {step}") for step in range(period, len(steps) + 1, period)]


RULES = {
    "paper_fraction": ForkRule(anticipating=True, points=_paper_fraction),
    "fraction": ForkRule(anticipating=True, points=_fraction),
    "call_fraction": ForkRule(anticipating=False, points=_call_fraction),
    "absolute": ForkRule(anticipating=False, points=_absolute),
    "every": ForkRule(anticipating=False, points=_every),
}
"""`fraction` and `paper_fraction` differ in the unit: all steps, or replies that parsed (G4). Rounding is
Python's, half to even. A point beyond the base's last step does not exist for that base."""


def fork_points(base: Trajectory, forks: ForksSection, limits: LimitsSection) -> list[ForkPoint]:
    """The fork points of `base` in order of step; points that coincide become one that bears both names."""
    rule = RULES[forks.rule]
    names: dict[int, list[str]] = {}
    for point in rule.points(base.steps, forks.at, limits):
        if 1 <= point.step <= len(base.steps):
            names.setdefault(point.step, []).append(point.depth)
    return [
        ForkPoint(
            base_id=base.id,
            step=step,
            rule=forks.rule,
            depth="+".join(depths),
            anticipating=rule.anticipating,
            prefix_digest=prefix_digest(base, step),
            calls_left=None if limits.calls is None else max(limits.calls - step + 1, 0),
        )
        for step, depths in sorted(names.items())
    ]


def start_of(fork: ForkPoint, base: Trajectory, budget: str) -> Start:
    """History and spent budget with which a branch starts.

    carry: all that the prefix spent. refund: calls are counted in replies that parsed, nothing else is carried:
    the paper's rule, which gives format-error calls back (G20).
    """
    prefix = base.steps[: fork.step - 1]
    if budget == "refund":
        return Start(prefix, Spent(calls=len(_parsed_turns(prefix))))
    spent = Spent()
    for step in prefix:
        spent = spend(spent, step)
    return Start(prefix, spent)


@dataclass(frozen=True)
class Resumed:
    """A sandbox at a fork point, and what was seen on the way there."""

    sandbox: Sandbox
    check: PrefixCheck


@contextmanager
def resume_at(
    fork: ForkPoint, base: Trajectory, image: Image, provider: SandboxProvider, study: Study
) -> Iterator[Resumed]:
    """A fresh sandbox in which the prefix's actions have been run again, each compared with its record."""
    with provider.start(image) as sandbox:
        check = re_execute(base, fork.step, sandbox, study.limits.action_seconds)
        yield Resumed(sandbox, check)


def re_execute(base: Trajectory, fork_step: int, sandbox: Sandbox, timeout_s: float) -> PrefixCheck:
    """Run the actions before `fork_step` and compare exit code, output and state with what was recorded."""
    actions = exits = outputs = states = states_equal = 0
    first_mismatch = None
    if base.start_digest is not None:
        states, states_equal = 1, int(sandbox.digest() == base.start_digest)
        first_mismatch = None if states_equal else 0
    for step in base.steps[: fork_step - 1]:
        agrees = True
        for action, recorded in zip(step.reply.actions, step.observations, strict=False):
            seen = sandbox.act(action.command, timeout_s=timeout_s)
            same_exit, same_output = _same_exit(seen, recorded), seen.sha256 == recorded.sha256
            actions, exits, outputs = actions + 1, exits + same_exit, outputs + same_output
            agrees = agrees and same_exit and same_output
        if step.observations and step.state_digest is not None:
            same_state = sandbox.digest() == step.state_digest
            states, states_equal = states + 1, states_equal + same_state
            agrees = agrees and same_state
        if not agrees and first_mismatch is None:
            first_mismatch = step.index
    return PrefixCheck(
        how="reexecute",
        actions=actions,
        exit_codes_equal=exits,
        outputs_equal=outputs,
        states=states,
        states_equal=states_equal,
        first_mismatch=first_mismatch,
    )


def _same_exit(seen: Observation, recorded: Observation) -> bool:
    return (seen.ended, seen.exit_code, seen.signal) == (recorded.ended, recorded.exit_code, recorded.signal)
