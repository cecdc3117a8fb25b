"""The run folder: it owns every path in it, appends whole records and reads them back.

    RUN/
      study.yaml        the study as resolved
      manifest.json     what made this run: versions, commit, machine, one entry a session
      tasks.jsonl       the study's tasks as it takes them: the run is read without the data set that they came from
      records/*.jsonl   one whole record a line; each session of the driver writes a file of its own
      scratch/          steps of rollouts under way, for `status` and `show`; not part of the result
      blobs/            snapshots of sandboxes by content address (see `snapshots`); without them forks re-execute
      scores/           teacher-forced scores of the run's steps, a file a scoring model, one whole score a line
      export/           canonical export

A line that lacks its newline at the end of a file was torn by a kill: it is not a record, and its cell is owed.
Anything else that cannot be read is an error that names file and line; nothing is ever dropped or rewritten.
"""

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote

from pydantic import ValidationError

from harness.errors import JournalError
from harness.record import (
    ANY_RECORD,
    SCHEMA_VERSION,
    AnyRecord,
    Branch,
    Failure,
    Regrade,
    Score,
    Step,
    Task,
    Trajectory,
    canonical_json,
)

PART = ".part"
"""Ends the name of a file that is being written; what bears it when a session begins was left by a kill."""


@dataclass
class Records:
    """All records of a run, by id, in the order written."""

    bases: dict[str, Trajectory] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    regrades: dict[str, Regrade] = field(default_factory=dict)
    """Further gradings of finished cells."""
    torn: list[str] = field(default_factory=list)
    """Files whose last line was torn by a kill."""

    def finished(self) -> frozenset[str]:
        """Ids of cells that need not be run again."""
        return frozenset(self.bases) | frozenset(self.branches)

    def calls(self) -> int:
        """Model calls made so far, those of failed attempts included."""
        bases = [base for base in self.bases.values() if base.source is None]  # imported ones called nobody
        kept: list[Trajectory | Branch | Failure] = [*bases, *self.branches.values(), *self.failures]
        return sum(len(record.steps) for record in kept)


class RunFolder:
    """Reads a run folder. See the module's first lines for the layout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study_file = path / "study.yaml"
        self.manifest_file = path / "manifest.json"
        self.tasks_file = path / "tasks.jsonl"
        self.records_folder = path / "records"
        self.scratch_folder = path / "scratch"
        self.blobs_folder = path / "blobs"
        self.scores_folder = path / "scores"
        self.export_folder = path / "export"

    def exists(self) -> bool:
        """True when a run lives here."""
        return self.study_file.is_file()

    def require(self) -> "RunFolder":
        """This folder, or an error when no run lives here."""
        if not self.exists():
            raise JournalError(f"{self.path}: not a run folder (no study.yaml); name one made by `forkroll run`")
        return self

    def manifest(self) -> dict[str, Any]:
        """Content of manifest.json."""
        try:
            content = json.loads(self.manifest_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise JournalError(f"{self.manifest_file}: cannot be read: {error}") from None
        if not isinstance(content, dict) or content.get("schema") != SCHEMA_VERSION:
            raise JournalError(f"{self.manifest_file}: schema is not {SCHEMA_VERSION}; use the version that made it")
        return content

    def tasks(self) -> list[Task] | None:
        """The study's tasks, in its order; None where they were not kept."""
        if not self.tasks_file.is_file():
            return None
        lines = self.tasks_file.read_text(encoding="utf-8").splitlines()
        try:
            return [Task.model_validate_json(line) for line in lines]
        except ValidationError as error:
            raise JournalError(f"{self.tasks_file}: not a list of tasks: {error.errors()[0]['msg']}") from None

    def records(self) -> Records:
        """Everything written so far."""
        found = Records()
        for path in sorted(self.records_folder.glob("*.jsonl")):
            for record in _read_file(path, found):
                _add(found, record, path)
        return found

    def scores(self, model: str) -> list[Score]:
        """What `model` (the study's name) gave the steps of this run, in the order written; a torn tail left out."""
        path = self.scores_file(model)
        return list(_read_scores(path)) if path.exists() else []

    def scores_file(self, model: str) -> Path:
        """Where the scores by `model` are kept."""
        return self.scores_folder / f"{model}.jsonl"

    def rollouts_under_way(self) -> dict[str, list[Step]]:
        """Cell id -> steps so far, of rollouts that have no record yet."""
        return {unquote(path.stem): _read_steps(path) for path in sorted(self.scratch_folder.glob("*.jsonl"))}

    def disk_bytes(self) -> int:
        """Bytes of all files in the folder."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # sandboxes end and snapshots go meanwhile
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total

    def export(self) -> Path:
        """Write the canonical export, records in order of id, and return its path."""
        records = self.records()
        finished: dict[str, Trajectory | Branch] = {**records.bases, **records.branches}
        lines = [canonical_json(finished[cell_id]) + "\n" for cell_id in sorted(finished)]
        path = self.export_folder / "canonical.jsonl"
        write_whole(path, "".join(lines))
        return path


def _read_file(path: Path, found: Records) -> Iterator[AnyRecord]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                found.torn.append(path.name)
                return
            try:
                yield ANY_RECORD.validate_json(line)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(str(part) for part in first["loc"])
                raise JournalError(f"{path}:{number}: not a record: {where} {first['msg']}".rstrip()) from None


def _add(found: Records, record: AnyRecord, path: Path) -> None:
    if isinstance(record, Failure):
        found.failures.append(record)
        return
    if record.id in found.bases or record.id in found.branches or record.id in found.regrades:
        raise JournalError(f"{path}: {record.id} is recorded twice; keep one of the two lines")
    if isinstance(record, Trajectory):
        found.bases[record.id] = record
    elif isinstance(record, Regrade):
        found.regrades[record.id] = record
    else:
        found.branches[record.id] = record


def _read_scores(path: Path) -> Iterator[Score]:
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):  # what follows the last newline is torn
        try:
            yield Score.model_validate_json(line)
        except ValidationError:
            raise JournalError(f"{path}:{number}: not a score; remove the file to score again") from None


def _read_steps(path: Path) -> list[Step]:
    lines = path.read_bytes().split(b"\n")
    return [Step.model_validate_json(line) for line in lines[:-1]]  # what follows the last newline is torn


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + PART)
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


class Journal:
    """The one writer of a run folder. Use as a context manager; a second writer is refused."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._owner = -1
        self._file = -1
        self._closed = False

    def __enter__(self) -> "Journal":
        for path in (self.folder.records_folder, self.folder.scratch_folder):
            path.mkdir(parents=True, exist_ok=True)
        self._owner = os.open(self.folder.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._owner)
            raise JournalError(f"{self.folder.path}: another forkroll is running here; wait for it or end it") from None
        left_over = [*self.folder.scratch_folder.glob("*.jsonl"), *self.folder.blobs_folder.glob(f"*{PART}")]
        for path in left_over:
            path.unlink()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # a worker that was abandoned may still try to append
            self._closed = True
            if self._file >= 0:
                os.close(self._file)
            os.close(self._owner)

    def start_session(self, study_yaml: str, manifest: dict[str, Any]) -> None:
        """Write the resolved study and the manifest, each whole or not at all."""
        write_whole(self.folder.manifest_file, json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        write_whole(self.folder.study_file, study_yaml)

    def keep_tasks(self, tasks: Iterable[Task]) -> None:
        """Write the study's tasks, whole or not at all."""
        write_whole(self.folder.tasks_file, "".join(task.model_dump_json() + "\n" for task in tasks))

    def append(self, record: AnyRecord) -> None:
        """Write one whole record durably, then drop its scratch."""
        line = record.model_dump_json().encode("utf-8") + b"\n"
        with self._lock:
            if self._closed:
                raise JournalError(f"{self.folder.path}: the journal is closed; {record.id} was not recorded")
            if self._file < 0:
                self._file = self._new_file()
            _write_durably(self._file, line)
        self._scratch(record.id).unlink(missing_ok=True)

    def _new_file(self) -> int:
        """A file of this session's own: a line torn by an earlier kill stays the last of its file."""
        number = len(list(self.folder.records_folder.glob("*.jsonl"))) + 1
        path = self.folder.records_folder / f"{number:04d}.jsonl"
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)

    def _scratch(self, cell_id: str) -> Path:
        return self.folder.scratch_folder / f"{quote(cell_id, safe='')}.jsonl"

    def steps_of(self, cell_id: str) -> "StepLog":
        """A step log for one attempt at a cell; an earlier attempt's is replaced."""
        return StepLog(self._scratch(cell_id))


class StepLog:
    """Steps of one rollout under way: kept in memory for a failure row, and a line each on disk."""

    def __init__(self, path: Path) -> None:
        self.steps: list[Step] = []
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o644)

    def __enter__(self) -> "StepLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def __call__(self, step: Step) -> None:
        """Keep `step`; it survives a kill of the driver once this returns."""
        line = step.model_dump_json().encode("utf-8") + b"\n"  # first: a failure row must be able to hold it
        self.steps.append(step)
        _write_all(self._file, line)


class ScoreLog:
    """The one writer of a file of scores. Use as a context manager; a second writer is refused.

    Scores can be computed again, so a last line that was torn by a kill is cut off, not kept.
    """

    def __init__(self, folder: RunFolder, model: str) -> None:
        self._path = folder.scores_file(model)
        self._file = -1

    def __enter__(self) -> "ScoreLog":
        self._path.parent.mkdir(exist_ok=True)
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise JournalError(f"{self._path}: another `forkroll score` is at work; wait for it or end it") from None
        os.ftruncate(self._file, self._path.read_bytes().rfind(b"\n") + 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def append(self, score: Score) -> None:
        """Write one whole score durably."""
        _write_durably(self._file, score.model_dump_json().encode("utf-8") + b"\n")


def _write_durably(file: int, line: bytes) -> None:
    """All of `line` on disk, or none of it: half a line would swallow the next one."""
    size = os.fstat(file).st_size
    try:
        _write_all(file, line)
        os.fdatasync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
