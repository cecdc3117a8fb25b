"""One session of a run, from the study's name to the last record.

The order matters: everything that can be wrong with the input is found before anything is written.
"""

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.assemble import (
    OpenModels,
    OpenProvider,
    cards_of,
    check_cards,
    open_models,
    open_provider,
    open_scaffold,
    open_tasks,
    select_tasks,
    stage_of,
)
from harness.clean import clean
from harness.config import Study, identity, load_study, to_yaml
from harness.errors import JournalError, ModelError, UsageError
from harness.journal import Journal, Records, RunFolder
from harness.manifest import new_manifest, session
from harness.preflight import check_models
from harness.progress import Progress
from harness.record import Branch, Task, Trajectory
from harness.sweep import Brakes, Tally, owed, plan_bases, plan_branches
from harness.sweep import run as run_cells
from harness.tasks.protocol import TaskSet

if TYPE_CHECKING:
    from harness.serving.selftest import SelfTest

GATE, INCOMPLETE, INTERRUPTED = 1, 4, 130

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
    tested: Mapping[str, "SelfTest"] = field(default_factory=dict)
    """The study's name of a model -> the self-test of its server, where there was one."""
    refused: bool = False
    """The study demands servers that repeat themselves, and one does not: nothing was run."""

    @property
    def exit_code(self) -> int:
        """0 when nothing is owed, 1 when refused, 130 when interrupted, 4 otherwise and when what was done measures
        nothing."""
        if self.refused:
            return GATE
        if not self.owed and self.stopped is None:
            return 0
        return INTERRUPTED if self.stopped == "interrupted" else INCOMPLETE

    def closing_lines(self) -> list[str]:
        """Where the result is and what to do next."""
        path = self.folder.path
        if self.refused:
            return [f"refused: {self.stopped}. The self-test is in {self.folder.manifest_file}; nothing was run"]
        if self.owed:
            why = self.stopped or "some cells failed; `forkroll status` says why"
            return [f"stopped: {why}. {self.owed} cells are owed; what is whole is kept. Resume: {self.command}"]
        if self.stopped is not None:
            return [f"stopped: {self.stopped}"]
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
    tasks = open_tasks(study.tasks.set)
    chosen = select_tasks(study, tasks)
    check_cards(study)
    place = _run_folder(study, chosen, folder or Path("runs") / study.name, force_new)
    where = ["--run", str(place.path)] if folder or force_new else []
    command = shlex.join(["forkroll", "run", source, *overrides, *where])
    if place.exists() and not _owed(study, chosen, place.records()):
        done = place.records()
        say(f"all {len(done.bases)} bases and {len(done.branches)} branches are done; nothing to run")
        return Finished(place, command, owed=0, stopped=None)
    end = _session(study, tasks, chosen, place, allow_unsandboxed=allow_unsandboxed, say=say)
    return Finished(place, command, _owed(study, chosen, place.records()), end.stopped, end.tested, end.refused)


@dataclass(frozen=True)
class _End:
    """How a session ended. See `Finished`."""

    stopped: str | None
    tested: Mapping[str, "SelfTest"]
    refused: bool = False


def _session(
    study: Study, tasks: TaskSet, chosen: Sequence[Task], place: RunFolder, *, allow_unsandboxed: bool, say: Say
) -> _End:
    """One session."""
    scratch = place.path.absolute() / "sandboxes"
    for reaped in clean([place.path], only=place.path, containers=study.sandbox.provider == "docker"):
        say(f"note: removed {reaped.kind} {reaped.name}, left by a dead driver")
    with open_provider(study, scratch, allow_unsandboxed=allow_unsandboxed) as sandboxes, open_models(study) as models:
        unchecked = check_models(study, chosen, open_scaffold(study), models.spoken, models.addresses)
        degraded = [*sandboxes.degraded, *models.notes(), *unchecked]
        for note in degraded:
            say(f"note: {note}")
        return _run_cells(study, tasks, chosen, place, sandboxes, models, degraded, say)


def _run_cells(
    study: Study,
    tasks: TaskSet,
    chosen: Sequence[Task],
    place: RunFolder,
    sandboxes: OpenProvider,
    models: OpenModels,
    degraded: Sequence[str],
    say: Say,
) -> _End:
    """Write the manifest, self-test the servers where that is asked for, and run what is owed."""
    with Journal(place) as journal:
        manifest = place.manifest() if place.exists() else new_manifest(study, open_scaffold(study), chosen)
        manifest["sessions"].append(session(sandboxes.provider.name, degraded, models.facts))
        manifest["cards"] = _card_digests(study)
        manifest["tasks"] |= new_manifest(study, open_scaffold(study), chosen)["tasks"]
        journal.start_session(to_yaml(study), manifest)
        for name in place.records().torn:
            say(f"note: the last line of records/{name} was torn by a kill; its cell is run again")
        tested = _tested(study, tasks, chosen, models, say)
        manifest["sessions"][-1]["determinism"] = {name: found.facts() for name, found in tested.items()}
        journal.start_session(to_yaml(study), manifest)
        if study.determinism.mode == "required" and (why := _not_deterministic(tested)):
            return _End(why, tested, refused=True)
        brakes = Brakes(study, journal, calls_before=place.records().calls())
        stage = stage_of(study, tasks, sandboxes.provider, models.clients)
        with _stop_on_signals(brakes.requested, say), Progress() as progress:
            tallies = run_cells(study, chosen, stage, journal, brakes, progress.watch)
        unread = brakes.unread(least=1)
        shown = [*sandboxes.provider.degraded, *models.notes(), *([unread] if unread else [])]
        _record_what_use_showed(manifest["sessions"][-1], sandboxes, models, shown, say)
        journal.start_session(to_yaml(study), manifest)
    return _End(_why_stopped(tallies), tested)


def _tested(
    study: Study, tasks: TaskSet, chosen: Sequence[Task], models: OpenModels, say: Say
) -> Mapping[str, "SelfTest"]:
    """The self-test of every model behind a server; empty where the study asks for none."""
    if study.determinism.mode == "off":
        return {}
    for name in sorted(study.models.keys() - models.askable.keys()):
        say(f"note: model {name!r} is behind no server; there is nothing to self-test")
    from harness.determinism import test_servers

    scaffold, temperature = open_scaffold(study), study.sampling.temperature
    say(f"self-test of {', '.join(models.askable) or 'no model'}")
    try:
        tested = test_servers(
            models.askable, scaffold, chosen, tasks.tasks(), study.determinism, temperature=temperature
        )
    except ModelError as error:
        raise UsageError(f"{error}; set determinism=off to run without a self-test") from None
    for found in tested.values():
        say(f"self-test: {found.line()}")
    return tested


def _not_deterministic(tested: Mapping[str, "SelfTest"]) -> str | None:
    """Which models do not repeat themselves; None when all do."""
    bad = [f"{name} ({', '.join(found.broken)})" for name, found in tested.items() if not found.deterministic]
    return f"determinism is required, and these models do not repeat themselves: {'; '.join(bad)}" if bad else None


def _card_digests(study: Study) -> dict[str, str]:
    """The study's name of a model -> digest of its card."""
    return {name: card.digest for name, card in cards_of(study).items()}


def _record_what_use_showed(
    entry: dict[str, Any], sandboxes: OpenProvider, models: OpenModels, notes: Sequence[str], say: Say
) -> None:
    """Images, what this machine lacks and what a server leaves out are known only once they have been used."""
    entry["models_in_use"] = {name: client.facts() for name, client in models.spoken.items()}
    for note in notes:
        if note not in entry["degraded"]:
            say(f"note: {note}")
            entry["degraded"].append(note)
    if sandboxes.provider.facts:
        entry["sandbox_facts"] = sandboxes.provider.facts


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
    cards = manifest.get("cards", {})
    found += [
        f"the card of model {name} was changed since"
        for name, digest in _card_digests(study).items()
        if cards.get(name, digest) != digest
    ]
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
