"""Live progress: one line a phase with done/total, ETA, calls/s and failures by class.

On a terminal the line is redrawn in place; elsewhere it is printed now and then, so that a log stays readable.
"""

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from harness.sweep import Tally

_REDRAW_SECONDS = 0.5
_LOG_SECONDS = 10.0


def line(tally: Tally, now: float) -> str:
    """The tally as one line."""
    elapsed = max(now - tally.started, 1e-9)
    parts = [f"{tally.phase:<8} {tally.done}/{tally.total}", f"{tally.calls / elapsed:.0f} calls/s"]
    if 0 < tally.done < tally.total:
        parts.append(f"ETA {_duration(elapsed / tally.done * (tally.total - tally.done))}")
    else:
        parts.append(_duration(elapsed))
    failures = ", ".join(f"{count} {side}" for side, count in sorted(tally.failures.items()))
    parts.append(f"failures: {failures}" if failures else "no failures")
    if tally.lost:
        parts.append(f"{tally.lost} cells given up")
    return " · ".join(parts)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"


class Progress:
    """Shows the phase that is under way, from a thread of its own, until closed."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._tally: Tally | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()
        self._finish()

    def watch(self, tally: Tally) -> None:
        """Close the line of the phase before, if any, and show `tally` from now on."""
        self._finish()
        with self._lock:
            self._tally = tally if tally.total else None

    def _finish(self) -> None:
        with self._lock:
            if self._tally is not None:
                self._draw(self._tally)
                if self._live:
                    self._stream.write("\n")
            self._tally = None

    def _run(self) -> None:
        while not self._closed.wait(_REDRAW_SECONDS if self._live else _LOG_SECONDS):
            with self._lock:
                if self._tally is not None:
                    self._draw(self._tally)

    def _draw(self, tally: Tally) -> None:
        text = line(tally, time.monotonic())
        self._stream.write(f"\r{text}\x1b[K" if self._live else text + "\n")
        self._stream.flush()
