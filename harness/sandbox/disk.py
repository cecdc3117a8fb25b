"""Ends steps that leave more on disk than a sandbox may have.

A file system of a limited size would need root; this needs only that the driver can see the layer that catches a
sandbox's writes. It looks at each step's end, and now and then while a step runs. A step that ends, or is ended, with
more on disk than the limit and more than before it is reported as ended by the disk limit. What is written between
two looks is not prevented; what a step frees again before the next look is not noticed.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import SandboxError
from harness.record import Exit, Observation

_LOOK_S = 0.2
"""Between two looks at a running step."""


def bytes_in(folder: Path) -> int:
    """Bytes that the files below `folder` take on disk; what cannot be read, or lies too deep, is not counted."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                total += _bytes_of(entry, waiting)
    return total


def _bytes_of(entry: "os.DirEntry[str]", waiting: list[str]) -> int:
    """Of a file; a folder is put on the list of those to look into."""
    with suppress(OSError):  # gone meanwhile
        if not entry.is_dir(follow_symlinks=False):
            return entry.stat(follow_symlinks=False).st_blocks * 512
        waiting.append(entry.path)
    return 0


class DiskWatch:
    """The limit of one sandbox."""

    def __init__(self, written: Path, limit: int, end_step: Callable[[], None]) -> None:
        self._written, self._limit, self._end_step = written, limit, end_step
        self._used = 0
        self.next_look = 0.0
        """On the monotonic clock."""

    def act(self, run: Callable[[], Observation]) -> Observation:
        """Run a step under the limit."""
        before = self._used
        with _WATCHER.over(self):
            observation = run()
        self._used = bytes_in(self._written)
        if self._used <= self._limit or self._used <= before:
            return observation
        return observation.model_copy(update={"ended": Exit.DISK_LIMIT, "exit_code": None, "signal": None})

    def passed(self) -> bool:
        """Whether the running step has passed the limit."""
        self.next_look = time.monotonic() + _LOOK_S
        used = bytes_in(self._written)
        return used > self._limit and used > self._used

    def end_step(self) -> None:
        """End the running step; where none runs any more the runner does nothing."""
        with suppress(SandboxError):  # the step's own thread finds a lost sandbox, and says so
            self._end_step()


class _Watcher:
    """One thread that looks at all running steps of this process; it sleeps when there are none."""

    def __init__(self) -> None:
        self._running: set[DiskWatch] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, watch: DiskWatch) -> Iterator[None]:
        """Look at `watch` as long as this lasts."""
        self._enter(watch)
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(watch)

    def _enter(self, watch: DiskWatch) -> None:
        watch.next_look = time.monotonic() + _LOOK_S
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="forkroll-disk")
                self._thread.start()
            wake = not self._running
            self._running.add(watch)
            if wake:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._running:
                    self._changed.wait()
            time.sleep(_LOOK_S / 4)
            for watch in self._due():
                if watch.passed():
                    self._end(watch)

    def _end(self, watch: DiskWatch) -> None:
        with self._changed:  # the step may have ended meanwhile, and the next one is not to blame
            if watch in self._running:
                watch.end_step()

    def _due(self) -> list[DiskWatch]:
        now = time.monotonic()
        with self._changed:
            return [watch for watch in self._running if watch.next_look <= now]


_WATCHER = _Watcher()
