"""A simulated server as a child process, for whoever needs a real one for a while.

The child ends with this process, however this process ends: it watches its standard input.
"""

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from harness.errors import ModelError

_READY = "serving on "
_ROOT = Path(__file__).parents[3]


class SimulatedServer:
    """Runs from `with` to the end of it; `arguments` are the server's own, such as `--noise off`."""

    def __init__(self, arguments: Sequence[str] = (), *, deadline_s: float = 30.0) -> None:
        self._arguments, self._deadline_s = list(arguments), deadline_s
        self._process: subprocess.Popen[bytes] | None = None
        self.base_url = ""
        """With /v1, once it is ready."""

    def __enter__(self) -> "SimulatedServer":
        command = [sys.executable, "-m", "harness.model.simulated.server", "--exit-with-stdin", *self._arguments]
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is the driver's business
        )
        try:
            self.base_url = self._ready_line().removeprefix(_READY)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _ready_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(self._deadline_s):
                raise ModelError(f"the simulated server is not ready after {self._deadline_s:g} s")
        line = self._process.stdout.readline().decode().strip()
        if not line.startswith(_READY):
            self._process.wait(self._deadline_s)
            self._errors.seek(0)
            said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            raise ModelError(f"the simulated server did not start: {said[-1] if said else 'it said nothing'}")
        return line

    def cpu_seconds(self) -> float:
        """Processor time that the server has used so far."""
        assert self._process is not None
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End the server; nothing when it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, self._errors):
            if stream is not None:
                stream.close()
