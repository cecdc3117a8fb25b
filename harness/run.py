"""One session of a run, from the study's name to the last record.

The order matters: everything that can be wrong with the input is found before anything is written.
"""

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.assemble import OpenProvider, open_models, open_provider, open_scaffold, open_tasks, select_tasks, stage_of
from harness.clean import clean
from harness.config import Study, identity, load_study, to_yaml
from harness.errors import JournalError
from harness.journal import Journal, Records, RunFolder
from harness.manifest import new_manifest, session
from harness.progress import Progress
from harness.record import Branch, Task, Trajectory
from harness.sandbox.protocol import Sandbox
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
) -> Finished:
    """Run what the study owes. Raises UsageError, with nothing written, when the input is at fault."""
    study = load_study(source, overrides)
    tasks = open_tasks(study)
    chosen = select_tasks(study, tasks)
    place = _run_folder(study, chosen, folder or Path("runs") / study.name, force_new)
    where = ["--run", str(place.path)] if folder or force_new else []
    command = shlex.join(["forkroll", "run", source, *overrides, *where])
    if place.exists() and not _owed(study, chosen, place.records()):
        done = place.records()
        say(f"all {len(done.bases)} bases and {len(done.branches)} branches are done; nothing to run")
        return Finished(place, command, owed=0, stopped=None)
    stopped = _session(study, tasks, chosen, place, allow_unsandboxed=allow_unsandboxed, say=say)
    return Finished(place, command, _owed(study, chosen, place.records()), stopped)


def _session(
    study: Study, tasks: TaskSet, chosen: Sequence[Task], place: RunFolder, *, allow_unsandboxed: bool, say: Say
) -> str | None:
    """One session; why it ended early, or None."""
    tasks.require(chosen)
    scratch = place.path.absolute() / "sandboxes"
    for reaped in clean([place.path], only=place.path, containers=study.sandbox.provider == "docker"):
        say(f"note: removed {reaped.kind} {reaped.name}, left by a dead driver")
    with (
        closing(tasks),
        open_provider(study, scratch, allow_unsandboxed=allow_unsandboxed) as sandboxes,
        open_models(study) as models,
        Journal(place) as journal,
    ):
        for note in sandboxes.degraded:
            say(f"note: {note}")
        manifest = place.manifest() if place.exists() else new_manifest(study, open_scaffold(study), chosen)
        manifest["sessions"].append(session(sandboxes.provider.name, sandboxes.degraded, models.facts))
        manifest["sessions"][-1]["grader"] = dict(tasks.facts())
        manifest["tasks"] |= new_manifest(study, open_scaffold(study), chosen)["tasks"]
        journal.keep_tasks(chosen)
        journal.start_session(to_yaml(study), manifest)
        for name in place.records().torn:
            say(f"note: the last line of records/{name} was torn by a kill; its cell is run again")
        brakes = Brakes(study, journal, calls_before=place.records().calls())
        stage = stage_of(study, tasks, sandboxes.provider, models.clients, grading=sandboxes.grading)
        stage = replace(stage, inspect=_Inspection(tasks, manifest, journal, study, say).inspect)
        with stop_on_signals(brakes.requested, say), Progress() as progress:
            tallies = run_cells(study, chosen, stage, journal, brakes, progress.watch)
        record_what_use_showed(manifest["sessions"][-1], sandboxes, say)
        journal.start_session(to_yaml(study), manifest)
    return _why_stopped(tallies)


class _Inspection:
    """Looks once at each task's repository for what came after the task; says and records what is there."""

    def __init__(self, tasks: TaskSet, manifest: dict[str, Any], journal: Journal, study: Study, say: Say) -> None:
        self._tasks, self._manifest, self._journal, self._study, self._say = tasks, manifest, journal, study, say
        self._lock = threading.Lock()
        self._begun: set[str] = set(manifest.setdefault("histories", {}))

    def inspect(self, task: Task, sandbox: Sandbox) -> None:
        """Look, where nobody has yet."""
        with self._lock:
            if task.instance_id in self._begun:
                return
            self._begun.add(task.instance_id)
        found = self._tasks.history_of(task, sandbox)
        if found is None:
            return
        with self._lock:
            self._manifest["histories"][task.instance_id] = asdict(found)
            self._journal.start_session(to_yaml(self._study), self._manifest)
        if found.reaches_past_base:
            self._say(f"note: {found.line(task.instance_id)}")


def record_what_use_showed(entry: dict[str, Any], sandboxes: OpenProvider, say: Say) -> None:
    """Images, and what this machine lacks, are partly known only once sandboxes have been started."""
    for place, provider in (("sandbox_facts", sandboxes.provider), ("grading_facts", sandboxes.grading)):
        for note in () if provider is None else provider.degraded:
            if note not in entry["degraded"]:
                say(f"note: {note}")
                entry["degraded"].append(note)
        if provider is not None and provider.facts:
            entry[place] = provider.facts


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
def stop_on_signals(requested: threading.Event, say: Say) -> Iterator[None]:
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
        *(cell.id for cell in plan_bases(study, tasks)),
        *(cell.id for cell in plan_branches(study, tasks, records.bases)),
    ]
    finished = records.finished()
    owed_ids = tuple(cell_id for cell_id in planned if cell_id not in finished)
    return OpenRun(folder, study, tuple(tasks), records, owed_ids, tuple(sorted(finished - set(planned))))
