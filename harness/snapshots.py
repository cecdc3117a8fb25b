"""The snapshots of a run: archives in RUN/blobs, each named by the SHA-256 of its content.

- `put` keeps an archive once, whoever took it and however often; it is whole or not there.
- The folder is kept within a budget of bytes. What was used longest ago goes first; to be put, asked for or named by
  `touch` is use, and the time of it is the file's modification time, so that the order outlives the session. What is
  being restored does not go. One that is larger than the whole budget is not kept.
- A blob whose content no longer has its name's digest counts as lost, and is removed.

A lost snapshot costs a re-execution, never a result. One session writes at a time (the journal's lock); within it, any
thread may.
"""

import hashlib
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.journal import PART
from harness.sandbox.protocol import Sandbox

_SUFFIX = ".tar"


@dataclass
class _Blob:
    size: int
    used_ns: int


class SnapshotStore:
    """The blobs of one run. Makes the folder when it is first written to."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder
        self._budget = budget
        """Bytes."""
        self._lock = threading.Lock()
        self._in_use: Counter[str] = Counter()
        found = ((path.stem, path.stat()) for path in folder.glob(f"*{_SUFFIX}"))
        self._blobs = {address: _Blob(info.st_size, info.st_mtime_ns) for address, info in found}
        self._last_ns = 0

    @property
    def used(self) -> int:
        """Bytes that the blobs take."""
        with self._lock:
            return self._total()

    @contextmanager
    def free_path(self) -> Iterator[Path]:
        """A path in the store's folder at which an archive may be written; removed if it is not `put`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{secrets.token_hex(8)}{PART}"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def put(self, archive: Path) -> str:
        """Move `archive`, which lies in the store's folder, to its place; its address, whether or not it is kept."""
        size, address = archive.stat().st_size, _address(archive)
        with self._lock:
            if size > self._budget:
                return address
            if address not in self._blobs:
                os.replace(archive, self._path(address))
                self._blobs[address] = _Blob(size, 0)
            self._use(address)
            self._evict()
        return address

    @contextmanager
    def borrow(self, address: str) -> Iterator[Path | None]:
        """The blob, kept for as long as the context lasts; None when it is lost."""
        with self._lock:
            self._in_use[address] += 1
        try:
            yield self.get(address)
        finally:
            with self._lock:
                self._in_use[address] -= 1
                self._evict()

    def get(self, address: str) -> Path | None:
        """The blob; None when it is lost. It may go at any time unless it is borrowed."""
        whole = self._is_whole(address)
        with self._lock:
            # Again where it was not: another thread may have put it back since.
            if not whole and not self._is_whole(address):
                self._drop(address)
                return None
            self._use(address)
        return self._path(address)

    def has(self, address: str) -> bool:
        """True when the blob has not gone; it is not read."""
        with self._lock:
            return address in self._blobs

    def touch(self, addresses: Iterable[str]) -> None:
        """Count as used now: they will be needed before others."""
        with self._lock:
            for address in addresses:
                self._use(address)

    def _path(self, address: str) -> Path:
        return self._folder / f"{address}{_SUFFIX}"

    def _is_whole(self, address: str) -> bool:
        with suppress(OSError):
            return _address(self._path(address)) == address
        return False

    def _total(self) -> int:
        return sum(blob.size for blob in self._blobs.values())

    def _use(self, address: str) -> None:
        if address in self._blobs:
            self._last_ns = max(time.time_ns(), self._last_ns + 1000)  # no two at one time
            self._blobs[address].used_ns = self._last_ns
            with suppress(FileNotFoundError):
                os.utime(self._path(address), ns=(self._last_ns, self._last_ns))

    def _drop(self, address: str) -> None:
        self._blobs.pop(address, None)
        self._path(address).unlink(missing_ok=True)

    def _evict(self) -> None:
        excess = self._total() - self._budget
        if excess <= 0:
            return
        for address, blob in sorted(self._blobs.items(), key=lambda item: item[1].used_ns):
            if excess <= 0:
                return
            if not self._in_use[address]:
                self._drop(address)
                excess -= blob.size


def _address(archive: Path) -> str:
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Snapshots:
    """Takes the snapshots of one rollout. A step that changed nothing is one look at the sandbox's mark."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._mark: str | None = None
        self._address: str | None = None

    def take(self, sandbox: Sandbox) -> str | None:
        """Address of a snapshot of the present state; None when this sandbox or state cannot be captured."""
        # The mark comes first: what changes in between makes the next mark another one.
        mark = sandbox.change_mark()
        if mark is not None and mark == self._mark and self._address is not None and self._store.has(self._address):
            self._store.touch([self._address])
            return self._address
        self._mark, self._address = mark, self._put(sandbox)
        return self._address

    def _put(self, sandbox: Sandbox) -> str | None:
        try:
            with self._store.free_path() as path:
                return self._store.put(path) if sandbox.snapshot(path) else None
        except OSError:  # the disk is full, say: a snapshot is worth no rollout
            return None
