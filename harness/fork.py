"""Where a base is forked, and how a sandbox is brought there with proof.

Every rule says whether it is anticipating: whether choosing step k needs to know the base at or after k
(estimands M1). Under an anticipating rule the base is no draw from the control's distribution.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.compare import compare
from harness.config import ForksSection, LimitsSection, Study
from harness.errors import SandboxError
from harness.loop import Start, spend
from harness.record import ForkPoint, PrefixCheck, Spent, Step, Trajectory, prefix_digest
from harness.sandbox.protocol import Image, Sandbox, SandboxProvider
from harness.snapshots import SnapshotStore


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
        return Start(prefix, Spent(calls=len(_parsed_turns(prefix))), base.opening)
    spent = Spent()
    for step in prefix:
        spent = spend(spent, step)
    return Start(prefix, spent, base.opening)


@dataclass(frozen=True)
class Resumed:
    """A sandbox at a fork point, and what was seen on the way there."""

    sandbox: Sandbox
    check: PrefixCheck


class _NoSnapshot(Exception):
    """A fork cannot be reached by a snapshot; the message says why."""


@contextmanager
def resume_at(
    fork: ForkPoint,
    base: Trajectory,
    image: Image,
    provider: SandboxProvider,
    study: Study,
    snapshots: SnapshotStore | None = None,
) -> Iterator[Resumed]:
    """A fresh sandbox in the state in which `base` was before the fork, reached as the study's `forks.mode` says.

    reexecute: the prefix's actions are run again, each compared with its record. snapshot: the snapshot taken after
    the step before is restored and its digest compared; where that fails, re-execution, and the check says why.
    verify: both. The branch goes on in the re-executed sandbox, so that a wrong snapshot can reach no result: a study
    in this mode is one in `reexecute` with evidence about its snapshots.
    """
    way = _Way(fork, base, image, provider, study.limits.action_seconds, snapshots)
    fell_back = None
    with ExitStack() as stack:
        if study.forks.mode == "snapshot":
            try:
                yield stack.enter_context(_by_snapshot(way))
                return
            except _NoSnapshot as error:
                fell_back = str(error)
        sandbox = stack.enter_context(provider.start(image))
        check = re_execute(base, fork.step, sandbox, way.timeout_s)
        if study.forks.mode == "verify":
            check = _verified(check, way, sandbox)
        yield Resumed(sandbox, check if fell_back is None else check.model_copy(update={"fell_back": fell_back}))


@dataclass(frozen=True)
class _Way:
    """From where, to where, with what."""

    fork: ForkPoint
    base: Trajectory
    image: Image
    provider: SandboxProvider
    timeout_s: float
    """Of one action."""
    snapshots: SnapshotStore | None

    @property
    def before(self) -> int:
        """The last step of the prefix; 0: there is none."""
        return self.fork.step - 1

    @property
    def recorded(self) -> str | None:
        """State digest at the fork, as recorded."""
        return self.base.steps[self.before - 1].state_digest if self.before else self.base.start_digest


@contextmanager
def _by_snapshot(way: _Way) -> Iterator[Resumed]:
    """_NoSnapshot, before anything is given out, where that does not lead to the recorded state."""
    with _restored(way) as sandbox:
        compared = way.recorded is not None
        equal = compared and sandbox.digest() == way.recorded
        if compared and not equal and way.before:
            raise _NoSnapshot(f"the snapshot of step {way.before} does not have the recorded state")
        yield Resumed(
            sandbox,
            PrefixCheck(
                how="snapshot",
                actions=0,
                exit_codes_equal=0,
                outputs_equal=0,
                normalised_equal=0,
                states=int(compared),
                states_equal=int(equal),
                first_mismatch=0 if compared and not equal else None,
                live_processes=live_at(way.base, way.fork.step),
            ),
        )


@contextmanager
def _restored(way: _Way) -> Iterator[Sandbox]:
    with ExitStack() as stack:
        yield _start_restored(way, stack)


def _start_restored(way: _Way, stack: ExitStack) -> Sandbox:
    if not way.before:
        return stack.enter_context(way.provider.start(way.image))
    address = way.base.steps[way.before - 1].circumstances.snapshot
    if way.snapshots is None or address is None:
        raise _NoSnapshot(f"no snapshot was taken after step {way.before}")
    with way.snapshots.borrow(address) as archive:
        if archive is None:
            raise _NoSnapshot(f"the snapshot of step {way.before} is lost")
        try:
            return stack.enter_context(way.provider.start(way.image, snapshot=archive))
        except SandboxError as error:
            raise _NoSnapshot(f"the snapshot of step {way.before} could not be restored: {error}") from error


def _verified(check: PrefixCheck, way: _Way, sandbox: Sandbox) -> PrefixCheck:
    """`check` of a re-executed prefix, with what the snapshot gives beside it."""
    try:
        with _restored(way) as other:
            seen, restored = sandbox.digest(), other.digest()
    except _NoSnapshot as error:
        return check.model_copy(update={"how": "verify", "fell_back": str(error)})
    if seen is None or restored is None:
        return check.model_copy(update={"how": "verify"})
    first = check.first_mismatch
    if seen != restored:
        first = way.before if first is None else min(first, way.before)
    return check.model_copy(update={"how": "verify", "snapshot_equal": seen == restored, "first_mismatch": first})


def live_at(base: Trajectory, fork_step: int) -> tuple[str, ...] | None:
    """Names of the processes that lived before `fork_step`; None when the base does not say."""
    return base.steps[fork_step - 2].processes if fork_step > 1 else ()


def re_execute(base: Trajectory, fork_step: int, sandbox: Sandbox, timeout_s: float) -> PrefixCheck:
    """Run the actions before `fork_step` and compare exit code, output and state with what was recorded.

    Outputs count twice, byte for byte and normalised; `first_mismatch` goes by the latter. What the base does not say
    is counted as unknown and is no mismatch.
    """
    actions = exits = outputs = normalised = states = states_equal = 0
    exits_unknown = outputs_unknown = 0
    first_mismatch = None
    if base.start_digest is not None:
        states, states_equal = 1, int(sandbox.digest() == base.start_digest)
        first_mismatch = None if states_equal else 0
    for step in base.steps[: fork_step - 1]:
        agrees = True
        for action, recorded in zip(step.reply.actions, step.observations, strict=False):
            like = compare(sandbox.act(action.command, timeout_s=timeout_s), recorded)
            actions, exits = actions + 1, exits + bool(like.exit_code)
            outputs, normalised = outputs + bool(like.output), normalised + bool(like.normalised)
            exits_unknown += like.exit_code is None
            outputs_unknown += like.output is None
            agrees = agrees and not like.differs
        if step.observations and step.state_digest is not None:
            same_state = sandbox.digest() == step.state_digest
            states, states_equal = states + 1, states_equal + same_state
            agrees = agrees and same_state
        if not agrees and first_mismatch is None:
            first_mismatch = step.index
    return PrefixCheck(
        how="reexecute",
        actions=actions,
        exit_codes_unknown=exits_unknown,
        outputs_unknown=outputs_unknown,
        exit_codes_equal=exits,
        outputs_equal=outputs,
        normalised_equal=normalised,
        states=states,
        states_equal=states_equal,
        first_mismatch=first_mismatch,
        live_processes=live_at(base, fork_step),
    )
