"""A run, from the study's name to the last record.

The order matters: everything that can be wrong with the input is found before anything is written.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.assemble import image_finder, open_scaffold, open_tasks, select_tasks
from harness.clients import check_cards
from harness.config import Study, load_study
from harness.errors import ConfigError
from harness.estimate import Estimate, estimate
from harness.journal import Records, RunFolder
from harness.record import Branch, Task, Trajectory
from harness.resume import cells_owed, missing_imports, run_folder
from harness.session import End, Say, Session
from harness.sweep import imported_bases, plan_bases, plan_branches

GATE, INCOMPLETE, INTERRUPTED = 1, 4, 130


@dataclass(frozen=True)
class Finished:
    """What a session came to."""

    folder: RunFolder
    command: str
    """What resumes the run."""
    owed: int
    """Cells without a record."""
    end: End

    @property
    def exit_code(self) -> int:
        """0 when nothing is owed, 1 when refused, 130 when interrupted, 4 otherwise and when what was done measures
        nothing."""
        if self.end.refused:
            return GATE
        if not self.owed and self.end.stopped is None:
            return 0
        return INTERRUPTED if self.end.stopped == "interrupted" else INCOMPLETE

    def closing_lines(self) -> list[str]:
        """Where the result is and what to do next."""
        path, stopped = self.folder.path, self.end.stopped
        if self.end.refused:
            return [f"refused: {stopped}. The self-test is in {self.folder.manifest_file}; nothing was run"]
        if self.owed:
            why = stopped or "some cells failed; `forkroll status` says why"
            return [f"stopped: {why}. {self.owed} cells are owed; what is whole is kept. Resume: {self.command}"]
        if stopped is not None:
            return [f"stopped: {stopped}"]
        return [f"run folder: {path} · next: forkroll show {path} · forkroll status {path}"]


def run_study(
    source: str,
    overrides: Sequence[str],
    *,
    folder: Path | None,
    force_new: bool,
    allow_unsandboxed: bool,
    say: Say,
    recorded: Path | None = None,
) -> Finished:
    """Run what the study owes. Raises UsageError, with nothing written, when the input is at fault.

    `recorded`: a run whose records answer in place of every model; the folder is then runs/NAME-recorded.
    """
    study = load_study(source, overrides)
    if recorded is not None:
        folder = _beside(recorded, folder or Path("runs") / f"{study.name}-recorded")
    tasks = open_tasks(study)
    chosen = select_tasks(study, tasks)
    check_cards(study, open_scaffold(study).dialect)
    place = run_folder(study, chosen, folder or Path("runs") / study.name, force_new)
    where = ["--run", str(place.path)] if folder or force_new else []
    where += ["--recorded", str(recorded)] if recorded is not None else []
    command = shlex.join(["forkroll", "run", source, *overrides, *where])
    if missing := missing_imports(study, chosen, place):
        say(f"note: {len(missing)} bases were not imported and are left out; first: {missing[0]}")
    if place.exists() and not cells_owed(study, chosen, place.records()):
        done = place.records()
        say(f"all {len(done.bases)} bases and {len(done.branches)} branches are done; nothing to run")
        return Finished(place, command, owed=0, end=End(None))
    end = Session(study, tasks, chosen, place, recorded, allow_unsandboxed, say).run()
    return Finished(place, command, cells_owed(study, chosen, place.records()), end)


def _beside(recorded: Path, folder: Path) -> Path:
    """`folder`, which must be another run's than the one that answers."""
    RunFolder(recorded).require()
    if folder.resolve() == recorded.resolve():
        raise ConfigError(f"{folder} cannot answer for itself; name another folder for the new run with --run DIR")
    return folder


def dry_run(source: str, overrides: Sequence[str]) -> tuple[Study, Estimate]:
    """The study as resolved and what it will take; nothing is written, no model is asked, nothing is pulled."""
    study = load_study(source, overrides)
    tasks = open_tasks(study)
    chosen = select_tasks(study, tasks)
    check_cards(study, open_scaffold(study).dialect)
    with image_finder(study) as present:
        return study, estimate(study, chosen, tasks.image, present)


@dataclass(frozen=True)
class OpenRun:
    """A run folder as it stands."""

    folder: RunFolder
    study: Study
    tasks: tuple[Task, ...]
    """The study's, in its order."""
    records: Records
    owed: tuple[str, ...]
    unplanned: tuple[str, ...]
    """Ids that are recorded and that the plan does not know."""

    def record(self, cell_id: str) -> Trajectory | Branch:
        """The finished record of that id."""
        return self.records.bases.get(cell_id) or self.records.branches[cell_id]


def open_run(path: Path) -> OpenRun:
    """Read a run folder and hold it against its plan."""
    folder = RunFolder(path).require()
    study = load_study(str(folder.study_file))
    kept = folder.tasks()
    tasks = select_tasks(study, open_tasks(study)) if kept is None else kept
    records = folder.records()
    planned = [
        *(cell_id for cell_id in imported_bases(study, tasks) if cell_id in records.bases),
        *(cell.id for cell in plan_bases(study, tasks)),
        *(cell.id for cell in plan_branches(study, tasks, records.bases)),
    ]
    finished = records.finished()
    owed_ids = tuple(cell_id for cell_id in planned if cell_id not in finished)
    return OpenRun(folder, study, tuple(tasks), records, owed_ids, tuple(sorted(finished - set(planned))))
