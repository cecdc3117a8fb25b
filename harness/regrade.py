"""Grades a finished run's cells again, as its study says, and appends what comes out. Outcomes stay as they were."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.assemble import open_graders, open_tasks, stage_of
from harness.config import RunLimits, Study, to_yaml
from harness.errors import UsageError
from harness.gradings import Design, GradeCell, plan_gradings
from harness.journal import Journal
from harness.manifest import session
from harness.progress import Progress
from harness.record import Task
from harness.run import INCOMPLETE, INTERRUPTED, OpenRun, open_run
from harness.session import record_what_use_showed, stop_on_signals
from harness.sweep import Brakes, Tally, run_gradings
from harness.tasks.protocol import TaskSet

Say = Callable[[str], None]


@dataclass(frozen=True)
class Graded:
    """What a session of grading came to."""

    owed: int
    """Gradings of the plan that have no record."""
    stopped: str | None

    @property
    def exit_code(self) -> int:
        """0 when nothing is owed, 130 when interrupted, 4 otherwise."""
        if not self.owed:
            return 0
        return INTERRUPTED if self.stopped == "interrupted" else INCOMPLETE


def grade(folder: Path, design: Design, times: int, *, allow_unsandboxed: bool, say: Say) -> Graded:
    """Do what is owed of `times` further gradings a chosen cell. UsageError, with nothing written, for bad input."""
    if not 0 < design.sample <= 1:
        raise UsageError(
            f"--sample is above 0 and at most 1, not {design.sample:g}: without a sample of the cells whose outcomes "
            "agree no rate over all of them can be told"
        )
    opened = open_run(folder)
    if opened.owed and design.sample < 1:
        raise UsageError(
            f"{folder} owes {len(opened.owed)} cells, and what they bring decides who is in the sample: finish the run "
            "first, or leave --sample out"
        )
    tasks = open_tasks(opened.study)
    with closing(tasks):
        planned = plan_gradings(opened.records, opened.tasks, design, times)
        owed = [cell for cell in planned if cell.id not in opened.records.regrades]
        if not owed:
            return Graded(0, None)
        tasks.require(_of(opened.tasks, owed))
        tally = _session(opened, tasks, owed, design, times, allow_unsandboxed=allow_unsandboxed, say=say)
    done = opened.folder.records().regrades
    return Graded(sum(cell.id not in done for cell in planned), tally.stopped)


def _of(tasks: Sequence[Task], cells: Sequence[GradeCell]) -> list[Task]:
    wanted = {cell.task.instance_id for cell in cells}
    return [task for task in tasks if task.instance_id in wanted]


def _session(
    opened: OpenRun,
    tasks: TaskSet,
    owed: Sequence[GradeCell],
    design: Design,
    times: int,
    *,
    allow_unsandboxed: bool,
    say: Say,
) -> Tally:
    study, place = _as_graded(opened.study), opened.folder
    scratch = place.path.absolute() / "sandboxes"
    with (
        open_graders(study, scratch, allow_unsandboxed=allow_unsandboxed) as sandboxes,
        Journal(place) as journal,
    ):
        for note in sandboxes.degraded:
            say(f"note: {note}")
        manifest = place.manifest()
        entry = session(sandboxes.provider.name, sandboxes.degraded, {})
        entry |= {"grading": {**asdict(design), "times": times}, "grader": dict(tasks.facts())}
        manifest["sessions"].append(entry)
        journal.start_session(to_yaml(opened.study), manifest)
        brakes = Brakes(study, journal, calls_before=0)
        stage = stage_of(study, tasks, sandboxes.provider, {})
        with stop_on_signals(brakes.requested, say), Progress() as progress:
            tally = run_gradings(owed, stage, journal, brakes, progress.watch)
        record_what_use_showed(entry, sandboxes, say)
        journal.start_session(to_yaml(opened.study), manifest)
    return tally


def _as_graded(study: Study) -> Study:
    """The study without the limits of its rollouts, which no grading counts towards."""
    return study.model_copy(update={"limits": study.limits.model_copy(update={"run": RunLimits()})})
