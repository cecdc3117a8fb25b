"""One session of a run, from the study's name to the last record.

The order matters: everything that can be wrong with the input is found before anything is written.
"""

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.assemble import (
    OpenProvider,
    open_models,
    open_provider,
    open_scaffold,
    open_tasks,
    recorded_models,
    select_tasks,
    stage_of,
)
from harness.clean import clean
from harness.config import Study, identity, load_study, to_yaml
from harness.errors import ConfigError, JournalError
from harness.journal import Journal, Records, RunFolder
from harness.manifest import new_manifest, prompts_digest, session
from harness.progress import Progress
from harness.record import Branch, Task, Trajectory
from harness.sweep import Brakes, Tally, owed, plan_bases, plan_branches
from harness.sweep import run as run_cells
from harness.tasks.protocol import TaskSet

INCOMPLETE, INTERRUPTED = 4, 130

Say = Callable[[str], None]


@dataclass(frozen=True)
class Finished:
    """What a session came to."""

    folder: RunFolder
    command: str
    """What resumes the run."""
    owed: int
    """Cells without a record."""
    stopped: str | None
    """Why it ended early; None when it did not."""

    @property
    def exit_code(self) -> int:
        """0 when nothing is owed, 130 when interrupted, 4 otherwise."""
        if not self.owed:
            return 0
        return INTERRUPTED if self.stopped == "interrupted" else INCOMPLETE

    def closing_lines(self) -> list[str]:
        """Where the result is and what to do next."""
        path = self.folder.path
        if self.owed:
            why = self.stopped or "some cells failed; `forkroll status` says why"
            return [f"stopped: {why}. {self.owed} cells are owed; what is whole is kept. Resume: {self.command}"]
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
    tasks = open_tasks(study.tasks.set)
    chosen = select_tasks(study, tasks)
    place = _run_folder(study, chosen, folder or Path("runs") / study.name, force_new)
    where = ["--run", str(place.path)] if folder or force_new else []
    where += ["--recorded", str(recorded)] if recorded is not None else []
    command = shlex.join(["forkroll", "run", source, *overrides, *where])
    if place.exists() and not _owed(study, chosen, place.records()):
        done = place.records()
        say(f"all {len(done.bases)} bases and {len(done.branches)} branches are done; nothing to run")
        return Finished(place, command, owed=0, stopped=None)
    stopped = _session(study, tasks, chosen, place, recorded, allow_unsandboxed=allow_unsandboxed, say=say)
    return Finished(place, command, _owed(study, chosen, place.records()), stopped)


def _beside(recorded: Path, folder: Path) -> Path:
    """`folder`, which must be another run's than the one that answers."""
    RunFolder(recorded).require()
    if folder.resolve() == recorded.resolve():
        raise ConfigError(f"{folder} cannot answer for itself; name another folder for the new run with --run DIR")
    return folder


def _session(
    study: Study,
    tasks: TaskSet,
    chosen: Sequence[Task],
    place: RunFolder,
    recorded: Path | None,
    *,
    allow_unsandboxed: bool,
    say: Say,
) -> str | None:
    """One session; why it ended early, or None."""
    scratch = place.path.absolute() / "sandboxes"
    for reaped in clean([place.path], only=place.path, containers=study.sandbox.provider == "docker"):
        say(f"note: removed {reaped.kind} {reaped.name}, left by a dead driver")
    with (
        open_provider(_acting(study, recorded), scratch, allow_unsandboxed=allow_unsandboxed) as sandboxes,
        open_models(study) if recorded is None else nullcontext(recorded_models(study, recorded)) as models,
        Journal(place) as journal,
    ):
        for note in (*sandboxes.degraded, *_says_of_source(study, recorded)):
            say(f"note: {note}")
        manifest = place.manifest() if place.exists() else new_manifest(study, open_scaffold(study), chosen)
        manifest["sessions"].append(session(sandboxes.provider.name, sandboxes.degraded, models.facts))
        manifest["tasks"] |= new_manifest(study, open_scaffold(study), chosen)["tasks"]
        journal.start_session(to_yaml(study), manifest)
        for name in place.records().torn:
            say(f"note: the last line of records/{name} was torn by a kill; its cell is run again")
        brakes = Brakes(study, journal, calls_before=place.records().calls())
        stage = stage_of(study, tasks, sandboxes.provider, models.clients)
        with _stop_on_signals(brakes.requested, say), Progress() as progress:
            tallies = run_cells(study, chosen, stage, journal, brakes, progress.watch)
        _record_what_use_showed(manifest["sessions"][-1], sandboxes, say)
        journal.start_session(to_yaml(study), manifest)
    return _why_stopped(tallies)


def _acting(study: Study, recorded: Path | None) -> Study:
    """The study with the models whose commands are run: a real one's are no tamer for being recorded."""
    if recorded is None:
        return study
    return study.model_copy(update={"models": load_study(str(RunFolder(recorded).study_file)).models})


def _says_of_source(study: Study, recorded: Path | None) -> Iterator[str]:
    """Who answers, and where the study that was recorded is another one: what hangs on that is a miss."""
    if recorded is None:
        return
    yield f"models answer from the records of {recorded}; no server is asked"
    before, now = identity(load_study(str(RunFolder(recorded).study_file))), identity(study)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and not key.startswith("models."):
            yield f"{recorded} was made with `{key}` {before.get(key)!r}, this study has {now.get(key)!r}"
    if RunFolder(recorded).manifest()["prompts_digest"] != prompts_digest(open_scaffold(study)):
        yield f"the prompts were changed since {recorded} was made"


def _record_what_use_showed(entry: dict[str, Any], sandboxes: OpenProvider, say: Say) -> None:
    """Images, and what this machine lacks, are partly known only once sandboxes have been started."""
    provider = sandboxes.provider
    for note in provider.degraded:
        if note not in entry["degraded"]:
            say(f"note: {note}")
            entry["degraded"].append(note)
    if provider.facts:
        entry["sandbox_facts"] = provider.facts


def _why_stopped(tallies: Sequence[Tally]) -> str | None:
    return next((tally.stopped for tally in tallies if tally.stopped), None)


def _owed(study: Study, tasks: Sequence[Task], records: Records) -> int:
    """Cells without a record; branches of bases that are not there yet are not counted: their number is unknown."""
    bases = owed(plan_bases(study, tasks), records)
    return len(bases) + len(owed(plan_branches(study, tasks, records.bases), records))


def _run_folder(study: Study, tasks: Sequence[Task], path: Path, force_new: bool) -> RunFolder:
    """The folder for this study: new, or one that this very study made before."""
    place = RunFolder(path)
    differences = _differences(study, tasks, place) if place.exists() else []
    if not differences:
        if path.exists() and not place.exists() and any(path.iterdir()):
            raise JournalError(f"{path}: exists, is not empty and is no run folder; choose another with --run")
        return place
    if not force_new:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise JournalError(f"{path}: made by another study: {differences[0]}{more}; use --force-new or --run DIR")
    number = 2
    while (sibling := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return RunFolder(sibling)


def _differences(study: Study, tasks: Sequence[Task], place: RunFolder) -> list[str]:
    """What makes the stored study another one. More replicates or tasks extend a run; they do not make another."""
    stored = load_study(str(place.study_file))
    before, now = identity(stored), identity(study)
    found = [
        f"`{key}` was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not _extends(key, before.get(key), now.get(key))
    ]
    manifest, fresh = place.manifest(), new_manifest(study, open_scaffold(study), tasks)
    if manifest["prompts_digest"] != fresh["prompts_digest"]:
        found.append("the prompts were changed since")
    changed = [name for name, value in fresh["tasks"].items() if manifest["tasks"].get(name, value) != value]
    return found + [f"task {name} was changed since" for name in changed]


def _extends(key: str, before: Any, now: Any) -> bool:
    if key == "replicates":
        return bool(now > before)
    if key == "tasks.count":
        return now is None or (before is not None and now > before)
    if key == "tasks.ids":
        return now is None or (before is not None and set(before) <= set(now))
    return False


@contextmanager
def _stop_on_signals(requested: threading.Event, say: Say) -> Iterator[None]:
    """First SIGINT or SIGTERM: start nothing new, finish what is under way. Second: abandon that too."""

    def stop(number: int, frame: object) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()
        say("stopping: no new cell starts, those under way are finished; press Ctrl-C again to abandon them")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class OpenRun:
    """A run folder as it stands."""

    folder: RunFolder
    study: Study
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
    tasks = select_tasks(study, open_tasks(study.tasks.set))
    records = folder.records()
    planned = [
        *(cell.id for cell in plan_bases(study, tasks)),
        *(cell.id for cell in plan_branches(study, tasks, records.bases)),
    ]
    finished = records.finished()
    owed_ids = tuple(cell_id for cell_id in planned if cell_id not in finished)
    return OpenRun(folder, study, records, owed_ids, tuple(sorted(finished - set(planned))))
