"""Plans cells and runs them. `plan` is pure: same study, tasks and bases, same cells in the same order.

A cell's id and seed say what it is and never when, where or how often it was tried. A finished cell is a record;
a failed attempt is a Failure row and the cell stays owed.
"""

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TypeVar

from harness.branch import BaseCell, BranchCell, Stage, run_base, run_branch, run_grading
from harness.config import Study
from harness.errors import NotRecorded, RolloutError
from harness.fork import fork_points
from harness.gradings import GradeCell
from harness.journal import Journal, Records
from harness.record import Arm, Branch, Failure, ForkPoint, Provenance, Regrade, Step, Stop, Task, Trajectory, seed_for
from harness.snapshots import SnapshotStore

Cell = TypeVar("Cell", BaseCell, BranchCell)
AnyCell = BaseCell | BranchCell | GradeCell

FAILURES_IN_A_ROW = 12
"""So many cells lost one after another, and the run stops: what serves them all is probably down."""


def base_id(task: Task, agent: str) -> str:
    """Id of the base of `agent` on `task`."""
    return f"{task.instance_id}:{agent}"


def plan_bases(study: Study, tasks: Sequence[Task]) -> list[BaseCell]:
    """One base a task and base model, whatever number of directions share it; imported ones are not run."""
    agents = [agent for agent in base_agents(study) if agent not in study.imported]
    return [
        BaseCell(base_id(task, agent), task, agent, seed_for(study.seed, "base", base_id(task, agent)))
        for task in tasks
        for agent in agents
    ]


def base_agents(study: Study) -> list[str]:
    """The models that bases are of, in the study's order."""
    return list(dict.fromkeys(direction.base for direction in study.directions.values()))


def imported_bases(study: Study, tasks: Sequence[Task]) -> list[str]:
    """Ids of the bases that are to be imported: those of models that cannot be asked."""
    return [base_id(task, agent) for task in tasks for agent in base_agents(study) if agent in study.imported]


def plan_branches(study: Study, tasks: Sequence[Task], bases: Mapping[str, Trajectory]) -> list[BranchCell]:
    """Every arm and replicate of every fork of every base at hand, arms in a seeded order within their fork."""
    cells = []
    for task in tasks:
        for label, direction in study.directions.items():
            base = bases.get(base_id(task, direction.base))
            if base is None:
                continue
            for fork in fork_points(base, study.forks, study.limits):
                cells += _fork_cells(study, task, label, base, fork)
    return cells


def _fork_cells(study: Study, task: Task, label: str, base: Trajectory, fork: ForkPoint) -> list[BranchCell]:
    direction = study.directions[label]
    agent = {"swap": direction.swap, "control": direction.base}
    cells = []
    for name in study.arms:
        for replicate in range(1, study.replicates + 1):
            cell_id = f"{task.instance_id}:{label}@{fork.step}:{name}#{replicate}"
            seed = seed_for(study.seed, "branch", base.id, fork.step, label, name, replicate)
            arm = Arm(name=name, agent=agent[name])
            cells.append(BranchCell(cell_id, task, label, base, fork, arm, replicate, seed))
    random.Random(seed_for(study.seed, "order", base.id, label, fork.step)).shuffle(cells)
    return cells


@dataclass
class Tally:
    """How far a phase is. Read by whoever shows progress; written under the runner's lock."""

    phase: str
    total: int
    done: int = 0
    calls: int = 0
    """Model calls made in this phase by this session."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed attempts by side."""
    lost: int = 0
    """Cells given up after their last attempt."""
    started: float = field(default_factory=time.monotonic)
    stopped: str | None = None
    """Why the phase ended early; None when it did not."""


@dataclass
class Voice:
    """What one model did in this session, as far as it shows whether its server reads tool calls."""

    ended_unread: int = 0
    """Rollouts that format errors ended."""
    replies: int = 0
    called: bool = False
    """A tool call was in a reply, well-formed or not."""

    def hear(self, steps: Sequence[Step], stop: Stop) -> None:
        """The model's steps of one rollout, which ended by `stop`."""
        self.ended_unread += stop is Stop.FORMAT_ERRORS
        self.replies += len(steps)
        self.called = self.called or any(step.reply.tool_calls for step in steps)


@dataclass
class Brakes:
    """What ends a run early: a request, a limit of the whole run, failures in a row, a model whose calls are not read.

    The last: in the dialect `tool_call`, no reply of a model in this session holds a tool call, well-formed or not, and
    format errors have ended `limits.run.rollouts_without_a_call` of its rollouts. A server without a tool parser, or
    with that of another model, gives just this, and everything measured from then on would be about the parser.
    """

    study: Study
    journal: Journal
    calls_before: int
    """Model calls in the run folder when this session started."""
    requested: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.monotonic)
    calls: int = 0
    failures_in_a_row: int = 0
    last_failure: str = ""
    """Side and message of the last attempt that failed."""
    voices: dict[str, Voice] = field(default_factory=dict)

    def hear(self, record: Trajectory | Branch) -> None:
        """Take note of a finished rollout."""
        for agent in {step.agent for step in record.steps}:
            voice = self.voices.setdefault(agent, Voice())
            voice.hear([step for step in record.steps if step.agent == agent], record.ending.stop)

    def unread(self, least: int | None = None) -> str | None:
        """The model whose calls are not read, and what to do; `least` in place of the study's number of rollouts."""
        asked = self.study.limits.run.rollouts_without_a_call
        if asked is None or self.study.dialect != "tool_call":
            return None
        for agent, voice in self.voices.items():
            if not voice.called and voice.ended_unread >= (least or asked):
                return (
                    f"model {agent!r} made no tool call in any of its {voice.replies} replies, and format errors ended "
                    f"{voice.ended_unread} rollouts: most likely its server has no tool parser, or another model's "
                    "(vLLM: --enable-auto-tool-choice --tool-call-parser NAME); else set `dialect: text`, or "
                    "`limits.run.rollouts_without_a_call: null` where the model is like that. What was recorded shows "
                    "the server and not the model: start again in a new folder (--run DIR)"
                )
        return None

    def reason(self) -> str | None:
        """Why no further cell may start; None when one may."""
        limits = self.study.limits.run
        if self.requested.is_set():
            return "interrupted"
        if limits.calls is not None and self.calls_before + self.calls >= limits.calls:
            return f"limits.run.calls reached ({self.calls_before + self.calls} of {limits.calls})"
        if limits.seconds is not None and time.monotonic() - self.started >= limits.seconds:
            return f"limits.run.seconds reached ({limits.seconds:g} s in this session)"
        if limits.disk_bytes is not None and (used := self.journal.folder.disk_bytes()) >= limits.disk_bytes:
            return f"limits.run.disk_bytes reached ({used} of {limits.disk_bytes})"
        if self.failures_in_a_row >= FAILURES_IN_A_ROW:
            return (
                f"{self.failures_in_a_row} cells in a row failed (see `forkroll status`), the last: {self.last_failure}"
            )
        return self.unread()


Watch = Callable[[Tally], None]
"""Called once when a phase starts; it may show the tally from then on."""


def run(
    study: Study, tasks: Sequence[Task], stage: Stage, journal: Journal, brakes: Brakes, watch: Watch
) -> list[Tally]:
    """Run what is owed: bases first, then the branches of every base there is."""
    if study.forks.mode != "reexecute":
        store = SnapshotStore(journal.folder.blobs_folder, study.forks.snapshot_bytes)
        stage = replace(stage, snapshots=store)
    records = journal.folder.records()
    attempts = Counter(failure.id for failure in records.failures)
    runner = _Runner(stage, journal, brakes, attempts)
    tallies = [runner.run_phase("bases", owed(plan_bases(study, tasks), records), watch)]
    tallies[-1].stopped = tallies[-1].stopped or brakes.unread()
    if tallies[-1].stopped is None:
        records = journal.folder.records()
        tallies.append(runner.run_phase("branches", owed(plan_branches(study, tasks, records.bases), records), watch))
    return tallies


def run_gradings(cells: Sequence[GradeCell], stage: Stage, journal: Journal, brakes: Brakes, watch: Watch) -> Tally:
    """Grade finished cells again."""
    attempts = Counter(failure.id for failure in journal.folder.records().failures)
    return _Runner(stage, journal, brakes, attempts).run_phase("gradings", cells, watch)


def owed(cells: Iterable[Cell], records: Records) -> list[Cell]:
    """The cells that have no record yet."""
    finished = records.finished()
    return [cell for cell in cells if cell.id not in finished]


class _Fate(Enum):
    """What became of an attempt at a cell, or of all attempts."""

    KEPT = auto()
    FAILED = auto()
    HOPELESS = auto()
    """Failed, and another attempt would fail alike."""


class _Runner:
    """Runs cells on threads, one journal between them."""

    def __init__(self, stage: Stage, journal: Journal, brakes: Brakes, attempts: Counter[str]) -> None:
        self._stage, self._journal, self._brakes = stage, journal, brakes
        self._attempts = attempts
        self._lock = threading.Lock()
        self._broken: Exception | None = None

    def run_phase(self, phase: str, cells: Sequence[AnyCell], watch: Watch) -> Tally:
        """Run `cells` until they are done or the brakes say why not."""
        tally = Tally(phase, len(cells))
        watch(tally)
        waiting = iter(cells)
        workers = [
            threading.Thread(target=self._work, args=(waiting, tally), name=f"worker-{number}", daemon=True)
            for number in range(min(self._stage.study.workers, len(cells)))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self._broken is not None:
            raise self._broken
        return tally

    def _work(self, waiting: Iterator[AnyCell], tally: Tally) -> None:
        try:
            self._work_off(waiting, tally)
        except Exception as error:  # the journal itself cannot be written: nothing more may run
            self._broken = error
            self._brakes.requested.set()

    def _work_off(self, waiting: Iterator[AnyCell], tally: Tally) -> None:
        while (cell := self._next(waiting, tally)) is not None:
            fate = self._keep_trying(cell, tally)
            with self._lock:
                tally.done += fate is _Fate.KEPT
                tally.lost += fate is not _Fate.KEPT
                if fate is not _Fate.HOPELESS:  # what was never recorded says nothing about the next cell
                    kept = fate is _Fate.KEPT
                    self._brakes.failures_in_a_row = 0 if kept else self._brakes.failures_in_a_row + 1

    def _next(self, waiting: Iterator[AnyCell], tally: Tally) -> AnyCell | None:
        with self._lock:
            cell = next(waiting, None)
            reason = self._brakes.reason() if cell is not None else None
            tally.stopped = tally.stopped or reason
            return cell if reason is None else None

    def _keep_trying(self, cell: AnyCell, tally: Tally) -> _Fate:
        for _ in range(self._stage.study.retries + 1):
            fate = self._attempt(cell, tally)
            if fate is not _Fate.FAILED or self._brakes.requested.is_set():
                return fate
        return _Fate.FAILED

    def _attempt(self, cell: AnyCell, tally: Tally) -> _Fate:
        self._attempts[cell.id] += 1
        attempt = self._attempts[cell.id]
        with self._journal.steps_of(cell.id) as log:

            def on_step(step: Step) -> None:
                log(step)
                with self._lock:
                    tally.calls += 1
                    self._brakes.calls += 1

            record: Trajectory | Branch | Regrade | Failure
            fate = _Fate.KEPT
            try:
                record = _run_cell(cell, self._stage, on_step, attempt)
            except Exception as error:  # a failure of any kind is a row, never a lost run
                record = _failure(cell.id, error, log.steps, attempt)
                fate = _Fate.HOPELESS if isinstance(error, NotRecorded) else _Fate.FAILED
        self._journal.append(record)
        with self._lock:
            if isinstance(record, Failure):
                tally.failures[record.side] += 1
                self._brakes.last_failure = f"{record.side}: {' '.join(record.message.split())}"
            elif not isinstance(record, Regrade):
                self._brakes.hear(record)
        return fate


def _run_cell(
    cell: AnyCell, stage: Stage, on_step: Callable[[Step], None], attempt: int
) -> Trajectory | Branch | Regrade:
    if isinstance(cell, GradeCell):
        return run_grading(cell, stage, attempt)
    if isinstance(cell, BaseCell):
        return run_base(cell, stage, on_step, attempt)
    return run_branch(cell, stage, on_step, attempt)


def _failure(cell_id: str, error: Exception, steps: Sequence[Step], attempt: int) -> Failure:
    named = isinstance(error, RolloutError)
    return Failure(
        id=cell_id,
        side=error.side if isinstance(error, RolloutError) else "harness",
        message=str(error) if named else f"{type(error).__name__}: {error}",
        traceback="" if named else "".join(traceback.format_exception(error)),
        steps=tuple(steps),
        provenance=Provenance(attempt=attempt),
    )
