"""`forkroll import`: what logs hold as a table, or their rollouts as bases of a run.

A log is read whole before its base is written, and a base that is there is never replaced. What is refused or left
out is counted and named; the rest is imported all the same.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.assemble import open_scaffold, open_tasks, refuse_models_of_ours, select_tasks
from harness.config import Study, load_study, to_yaml
from harness.errors import ConfigError, UsageError
from harness.importers.continuing import logged_scaffold
from harness.importers.files import documents
from harness.importers.mini import MiniImporter, verdict
from harness.importers.own import read_runs
from harness.importers.protocol import Imported, Importer, ImportFault, Refused
from harness.importers.sweagent import SweAgentImporter
from harness.importers.verdicts import read_verdicts
from harness.journal import Journal, RunFolder
from harness.manifest import new_manifest, session
from harness.record import Source, Task
from harness.resume import run_folder
from harness.scaffold.mini import MiniScaffold
from harness.sweep import base_agents, base_id

Say = Callable[[str], None]
Read = Imported | Refused

IMPORTERS: dict[str, Importer] = {importer.kind: importer for importer in (MiniImporter(), SweAgentImporter())}
KINDS = (*IMPORTERS, "own")


def read_logs(
    kind: str, paths: Sequence[Path], agent: str, run: str | None, verdicts: Mapping[str, bool] | None = None
) -> Iterator[Read]:
    """Every rollout that `paths` hold, as a base of `agent`; of the run of that name alone, where one is given.

    `verdicts` by instance are of logs that hold none themselves.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind of log {kind!r}; known: {', '.join(KINDS)}")
    if kind == "own":
        yield from read_runs(paths, agent, run)
        return
    for document in documents(paths):
        if isinstance(document, Refused):
            yield document
        elif run is None or document.run == run:
            try:
                yield _judged(IMPORTERS[kind].read(document, agent), verdicts or {})
            except ImportFault as fault:
                yield Refused(document.name, fault.place, fault.problem)


def _judged(read: Imported, verdicts: Mapping[str, bool]) -> Imported:
    base = read.base
    if base.ending.outcome.status != "unscored" or base.task_id not in verdicts:
        return read
    ending = base.ending.model_copy(update={"outcome": verdict(verdicts[base.task_id])})
    return replace(read, base=base.model_copy(update={"ending": ending}))


@dataclass
class Held:
    """What logs of one run and model hold."""

    run: str
    model: str
    format: str
    rollouts: int = 0
    tasks: set[str] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)
    resolved: int = 0
    graded: int = 0
    steps: int = 0
    format_errors: int = 0
    input_tokens: int | None = None
    """None: no step says."""
    output_tokens: int | None = None

    def add(self, imported: Imported, source: Source) -> None:
        """Count one rollout."""
        base = imported.base
        self.rollouts += 1
        self.tasks.add(base.task_id)
        self.statuses[source.exit_status] += 1
        self.resolved += base.ending.outcome.status == "resolved"
        self.graded += base.ending.outcome.status != "unscored"
        self.steps += len(base.steps)
        self.format_errors += sum(step.reply.format_error is not None for step in base.steps)
        if any(step.reply.usage.output_tokens is not None for step in base.steps):
            self.input_tokens = (self.input_tokens or 0) + base.ending.spent.input_tokens
            self.output_tokens = (self.output_tokens or 0) + base.ending.spent.output_tokens


@dataclass
class Listing:
    """What logs hold."""

    held: list[Held]
    refused: list[Refused]
    remarks: Counter[str]


def list_logs(kind: str, paths: Sequence[Path], run: str | None) -> Listing:
    """Read everything and write nothing."""
    held: dict[tuple[str, str, str], Held] = {}
    listing = Listing([], [], Counter())
    for read in read_logs(kind, paths, "-", run):
        if isinstance(read, Refused):
            listing.refused.append(read)
            continue
        source = source_of(read)
        key = (source.run, read.model, source.format)
        held.setdefault(key, Held(*key)).add(read, source)
        listing.remarks.update(read.remarks)
    listing.held = sorted(held.values(), key=lambda one: (one.run, one.model, one.format))
    return listing


def source_of(imported: Imported) -> Source:
    """Where an imported base came from."""
    assert imported.base.source is not None
    return imported.base.source


@dataclass
class Taken:
    """What an import came to."""

    folder: RunFolder
    imported: list[str] = field(default_factory=list)
    """Ids of the bases that were written."""
    refused: list[Refused] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> names of the logs."""
    remarks: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Everything that happened, for a person."""
        lines = [f"imported: {len(self.imported)} bases into {self.folder.path}"]
        lines += [f"  of these, {count}: {remark}" for remark, count in sorted(self.remarks.items())]
        for reason, names in sorted(self.left_out.items()):
            lines.append(f"left out: {len(names)}: {reason}: {_some(names)}")
        if self.refused:
            lines.append(f"refused: {len(self.refused)}")
            lines += [f"  {one.line()}" for one in self.refused]
        return lines


def _some(names: Sequence[str], count: int = 3) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


@dataclass(frozen=True)
class Wanted:
    """What is to be imported, and whereto."""

    kind: str
    paths: Sequence[Path]
    study: str
    overrides: Sequence[str]
    agent: str
    folder: Path | None
    run: str | None = None
    """Of the logs; None: all of them."""
    verdicts: Path | None = None
    """A report that says which were resolved; None: what the logs say themselves."""


def import_logs(wanted: Wanted, say: Say) -> Taken:
    """Make or extend the run folder of the study with bases from logs. UsageError, with nothing written, where the
    study cannot have them."""
    study = load_study(wanted.study, wanted.overrides)
    if wanted.agent not in base_agents(study):
        raise ConfigError(f"--agent {wanted.agent!r} is the base of no direction; bases: {_some(base_agents(study))}")
    tasks = {task.instance_id: task for task in select_tasks(study, open_tasks(study))}
    verdicts = None if wanted.verdicts is None else read_verdicts(wanted.verdicts)
    place = run_folder(study, list(tasks.values()), wanted.folder or Path("runs") / study.name, force_new=False)
    taken = Taken(place)
    with ExitStack() as stack:
        writer = _Writer(study, tasks, place, wanted, stack)
        for read in read_logs(wanted.kind, wanted.paths, wanted.agent, wanted.run, verdicts):
            if isinstance(read, Refused):
                taken.refused.append(read)
                continue
            reason = writer.why_not(read)
            if reason is not None:
                taken.left_out.setdefault(reason, []).append(source_of(read).name)
                continue
            writer.write(read)
            taken.imported.append(read.base.id)
            taken.remarks.update(read.remarks)
        writer.finish(taken)
    for note in writer.notes:
        say(f"note: {note}")
    return taken


def _notes(study: Study) -> Iterator[str]:
    """What a study asks for that logs cannot give."""
    if study.limits.seconds is not None:
        yield "limits.seconds: what an imported prefix took is known only as far as its log has times"
    if study.grading.of != "submission":
        yield "grading.of working_tree: the verdicts of logs are about submissions; grading.of=submission compares like"
    if study.forks.mode != "reexecute":
        yield f"forks.mode {study.forks.mode}: imported bases have no snapshots; their prefixes are re-executed"


class _Writer:
    """Writes bases; the run folder is made for the first of them."""

    def __init__(
        self, study: Study, tasks: dict[str, Task], place: RunFolder, wanted: Wanted, stack: ExitStack
    ) -> None:
        self._study, self._tasks, self._place, self._wanted, self._stack = study, tasks, place, wanted, stack
        self._there = set(place.records().finished()) if place.exists() else set()
        self._journal: Journal | None = None
        self._manifest: dict[str, Any] = {}
        self.notes = list(_notes(study))

    def why_not(self, read: Imported) -> str | None:
        """Why a base cannot be had in this run; None when it can."""
        task = self._tasks.get(read.base.task_id)
        if task is None:
            return "not among the study's tasks"
        if base_id(task, self._wanted.agent) in self._there:
            return f"{self._wanted.agent} has a base of that task already"
        if not read.base.steps:
            return "holds no step: there is nothing to fork"
        return self._why_not_gone_on_with(source_of(read))

    def _why_not_gone_on_with(self, source: Source) -> str | None:
        try:
            scaffold = logged_scaffold(source)
            if isinstance(scaffold, MiniScaffold):
                refuse_models_of_ours(self._study, scaffold.dialect)
                scaffold.require_kept(self._study.sandbox.output_bytes)
                self.notes += [note for note in scaffold.notes(self._study.limits) if note not in self.notes]
        except ConfigError as error:
            return str(error)
        return None

    def write(self, read: Imported) -> None:
        """Keep one base."""
        if self._journal is None:
            self._journal = self._stack.enter_context(Journal(self._place))
            self._start()
        self._journal.append(read.base)
        self._there.add(read.base.id)

    def _start(self) -> None:
        """A session of its own: the run folder is a valid one from its first base on."""
        fresh = new_manifest(self._study, open_scaffold(self._study), list(self._tasks.values()))
        self._manifest = self._place.manifest() if self._place.exists() else fresh
        self._manifest["tasks"] |= fresh["tasks"]
        self._manifest["sessions"].append(session("imported", self.notes, {}))
        self._keep_manifest()

    def _keep_manifest(self) -> None:
        if self._journal is not None:
            self._journal.start_session(to_yaml(self._study), self._manifest)

    def finish(self, taken: Taken) -> None:
        """Say in the manifest what was imported and what was not."""
        if self._journal is None:
            return
        self._manifest["sessions"][-1]["imported"] = {
            "kind": self._wanted.kind,
            "agent": self._wanted.agent,
            "bases": len(taken.imported),
            "left_out": {reason: len(names) for reason, names in taken.left_out.items()},
            "refused": [one.line() for one in taken.refused],
            "remarks": dict(taken.remarks),
        }
        self._keep_manifest()
