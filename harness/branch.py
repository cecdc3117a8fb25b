"""One cell: a base, or one arm and replicate from one fork, from a fresh sandbox to a graded record."""

import hashlib
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from harness.agent import Agent
from harness.config import Study
from harness.fork import Resumed, fork_points, resume_at, start_of
from harness.gradings import GradeCell
from harness.loop import Continuation, Start, rollout
from harness.record import Arm, Branch, Ending, ForkPoint, Provenance, Regrade, Source, Step, Task, Trajectory
from harness.routing import Always, policy_for
from harness.sandbox.protocol import Image, Sandbox, SandboxProvider
from harness.scaffold.protocol import Scaffold
from harness.score import score, what_is_graded
from harness.snapshots import Snapshots, SnapshotStore
from harness.tasks.protocol import TaskSet


@dataclass(frozen=True)
class Stage:
    """What every cell of a run works with."""

    study: Study
    tasks: TaskSet
    provider: SandboxProvider
    new_agents: Callable[[], Mapping[str, Agent]]
    """Fresh agents for one rollout, by the study's names."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the scaffold gives to actions."""
    snapshots: SnapshotStore | None = None
    """Where bases keep their state after each step; None: they do not."""
    logged: Callable[[Source], Scaffold] | None = None
    """The scaffold in which branches of an imported base go on; None: the study's."""
    agents_in: Callable[[Scaffold], Mapping[str, Agent]] | None = None
    """Fresh agents that are spoken to as that scaffold says."""
    grading_provider: SandboxProvider | None = None
    """Where grading is done; None: where rollouts are."""
    inspect: Callable[[Task, Sandbox], None] = lambda task, sandbox: None
    """Shown each base's sandbox before anything is done in it."""

    def image(self, task: Task) -> Image:
        """The start state of `task`, with the environment that actions get in a rollout."""
        return with_environment(self.tasks.image(task), self.environment)

    def for_base(self, base: Trajectory) -> "Stage":
        """This stage as branches of `base` need it: those of an imported base go on in its own scaffold."""
        if base.source is None or self.logged is None or self.agents_in is None:
            return self
        scaffold = self.logged(base.source)
        return replace(self, new_agents=partial(self.agents_in, scaffold), environment=scaffold.environment)


def with_environment(image: Image, environment: Mapping[str, str]) -> Image:
    """`image` with more variables, under a name of its own: the one without them is what grading starts from."""
    if not environment:
        return image
    mark = hashlib.sha256(repr(sorted(environment.items())).encode()).hexdigest()[:8]
    return replace(image, name=f"{image.name}-{mark}", env={**image.env, **environment})


@dataclass(frozen=True)
class BaseCell:
    """A base rollout to be run."""

    id: str
    task: Task
    agent: str
    seed: int


@dataclass(frozen=True)
class BranchCell:
    """A branch to be run."""

    id: str
    task: Task
    direction: str
    base: Trajectory
    fork: ForkPoint
    arm: Arm
    replicate: int
    seed: int


class _Clock:
    """Times the parts of one cell."""

    def __init__(self, attempt: int) -> None:
        self._attempt, self._started_at = attempt, datetime.now(UTC).isoformat()
        self._start = self._ready = self._rolled = time.monotonic()

    def sandbox_ready(self) -> None:
        self._ready = time.monotonic()

    def rolled_out(self) -> None:
        self._rolled = time.monotonic()

    def provenance(self, sandbox: Sandbox | None = None) -> Provenance:
        now = time.monotonic()
        return Provenance(
            attempt=self._attempt,
            host=socket.gethostname(),
            started_at=self._started_at,
            seconds=now - self._start,
            scoring_seconds=now - self._rolled,
            sandbox_start_seconds=self._ready - self._start,
            digest_method="" if sandbox is None else sandbox.digest_method,
        )


def run_base(cell: BaseCell, stage: Stage, on_step: Callable[[Step], None], attempt: int) -> Trajectory:
    """Roll the base out and grade it."""
    clock, study = _Clock(attempt), stage.study
    with stage.provider.start(stage.image(cell.task)) as sandbox:
        stage.inspect(cell.task, sandbox)
        start_digest = sandbox.digest()
        clock.sandbox_ready()
        done = rollout(
            cell.task, Always(cell.agent), stage.new_agents(), sandbox,
            limits=study.limits, seed=cell.seed, on_step=on_step, snapshot=_snapshots(stage),
        )  # fmt: skip
        patch = sandbox.working_diff(cell.task.base_commit)
    clock.rolled_out()
    base = Trajectory(
        id=cell.id,
        task_id=cell.task.instance_id,
        agent=cell.agent,
        seed=cell.seed,
        sandbox=stage.provider.name,
        start_digest=start_digest,
        steps=done.steps,
        ending=_ending(cell.task, done, patch, stage),
        provenance=clock.provenance(sandbox),
    )
    _keep_for_forks(base, stage)
    return base


def _snapshots(stage: Stage) -> Callable[[Sandbox], str | None]:
    return (lambda sandbox: None) if stage.snapshots is None else Snapshots(stage.snapshots).take


def _keep_for_forks(base: Trajectory, stage: Stage) -> None:
    """What its branches will start from counts as used now: other steps' snapshots make room first."""
    if stage.snapshots is not None:
        forks = fork_points(base, stage.study.forks, stage.study.limits)
        needed = [base.steps[fork.step - 2].circumstances.snapshot for fork in forks if fork.step > 1]
        stage.snapshots.touch(address for address in needed if address is not None)


def run_branch(cell: BranchCell, stage: Stage, on_step: Callable[[Step], None], attempt: int) -> Branch:
    """Bring a fresh sandbox to the fork, let the arm go on from there, grade it."""
    clock, study, stage = _Clock(attempt), stage.study, stage.for_base(cell.base)
    start = start_of(cell.fork, cell.base, study.budget)
    image = stage.image(cell.task)
    with resume_at(cell.fork, cell.base, image, stage.provider, study, stage.snapshots) as resumed:
        clock.sandbox_ready()
        done, patch = _continue(cell, stage, resumed, start, on_step)
    clock.rolled_out()
    return Branch(
        id=cell.id,
        task_id=cell.task.instance_id,
        direction=cell.direction,
        fork=cell.fork,
        arm=cell.arm,
        replicate=cell.replicate,
        seed=cell.seed,
        sandbox=stage.provider.name,
        prefix=resumed.check,
        steps=done.steps,
        ending=_ending(cell.task, done, patch, stage),
        provenance=clock.provenance(resumed.sandbox),
    )


def _continue(
    cell: BranchCell, stage: Stage, resumed: Resumed, start: Start, on_step: Callable[[Step], None]
) -> tuple[Continuation, bytes]:
    done = rollout(
        cell.task, policy_for(cell.arm), stage.new_agents(), resumed.sandbox,
        limits=stage.study.limits, seed=cell.seed, start=start, on_step=on_step,
    )  # fmt: skip
    return done, resumed.sandbox.working_diff(cell.task.base_commit)


def _ending(task: Task, done: Continuation, patch: bytes, stage: Stage) -> Ending:
    of = stage.study.grading.of
    graded = what_is_graded(of, done.submission, patch)
    return Ending(
        spent=done.spent,
        stop=done.stop,
        refused_request=done.refused_request,
        submission=done.submission,
        patch=patch,
        graded=of,
        outcome=score(task, graded, stage.tasks, stage.grading_provider or stage.provider),
    )


def run_grading(cell: GradeCell, stage: Stage, attempt: int) -> Regrade:
    """Grade once more what a finished cell left behind."""
    clock = _Clock(attempt)
    outcome = score(cell.task, cell.patch, stage.tasks, stage.grading_provider or stage.provider)
    return Regrade(
        id=cell.id,
        cell_id=cell.record.id,
        number=cell.number,
        outcome=outcome,
        inclusion=cell.inclusion,
        sample=cell.design.sample,
        sample_seed=cell.design.seed,
        grader=dict(stage.tasks.facts()),
        provenance=clock.provenance(),
    )
