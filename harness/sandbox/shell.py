"""The driver's end of the in-sandbox action runner (`runner.bash`), shared by every live sandbox.

- One action is one request; its output comes through a FIFO of its own, so that a process left in the
  background can neither hold the step open nor speak into a later one. Such a FIFO is drained until its last
  writer is gone.
- The clock is the driver's. When it runs out the runner is told to end the step from inside.
- Memory stays flat whatever the output: a head, a tail, the size and a running SHA-256 are kept.
- A runner that dies, or that does not answer in time, is SandboxError, at the next act at the latest.
- Death by a signal is told apart from the exit code 128 + n by bash's own notice; bash gives none for INT,
  TERM and PIPE, which are therefore reported as the plain exit codes 130, 143 and 141.
"""

import array
import codecs
import contextlib
import errno
import fcntl
import hashlib
import io
import math
import os
import re
import secrets
import select
import selectors
import shlex
import signal
import termios
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.errors import ConfigError, SandboxError
from harness.record import Exit, Observation, clean_text

RUNNER = Path(__file__).with_name("runner.bash")

MAX_ARGUMENT = 131_071
"""Bytes that Linux takes in one argv entry."""
_INLINE = 512
"""The runner reads its requests byte by byte: longer scripts go by file."""
_GRACE_S = 15.0
"""How long the runner may take to end a step, or to start, before the sandbox counts as lost."""
_AGAIN_S = 0.2
_SETTLE_S = 0.02
"""Between two looks at what a step left alive: a child that was just forked bears its parent's name, and one that is
just ending is still there."""
_LOOKS = 6
_VANISHED = "?"
"""What the runner calls a process that ended while it was looked at: it may have left another in its place."""
_INTERNAL_S = 120.0
"""Time limit of the driver's own work inside (files, diffs)."""
_CHUNK = 1 << 16
_REPORT_BYTES = 2 * _CHUNK
"""What is kept of the runner's words: a report, and the notices before it, whatever a flood puts around them."""
_STRAY_CHUNKS = 16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Capture:
    """Takes a stream of any length; keeps `limit` bytes of it, half head, half tail (None: all)."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self._digest = hashlib.sha256()
        self._text = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._characters = 0
        self.size = 0

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self._limit is None:
            self._head += chunk
            return
        self._digest.update(chunk)
        self._characters += len(self._text.decode(chunk))
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > self._tail_bytes + (1 << 18):
            del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def _head_bytes(self) -> int:
        assert self._limit is not None
        return self._limit - self._tail_bytes

    @property
    def _tail_bytes(self) -> int:
        assert self._limit is not None
        return self._limit // 2

    @property
    def cut_at(self) -> int | None:
        return None if self._limit is None or self.size <= self._limit else len(self._head)

    def kept(self) -> bytes:
        if self._limit is None or not self._tail:
            return bytes(self._head)
        return bytes(self._head) + bytes(self._tail[max(0, len(self._tail) - self._tail_bytes) :])

    def characters(self) -> int | None:
        """Of the whole stream as text; to be asked once, when it has ended. None where nothing was cut."""
        return None if self.cut_at is None else self._characters + len(self._text.decode(b"", final=True))

    def sha256(self) -> str:
        if self._limit is None:
            self._digest.update(self._head)
        return self._digest.hexdigest()


class _Output:
    """The driver's end of one step's FIFO."""

    def __init__(self, fifo: Path, keep: int | None) -> None:
        self.fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.capture = _Capture(keep)
        self.open = True

    def pull(self) -> None:
        """Take one chunk, or notice that the last writer is gone."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return
        if chunk:
            self.capture.add(chunk)
        else:
            self.close()

    def finish(self) -> None:
        """The action has ended: take what lies in the pipe now, and no more than that."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self.fd, termios.FIONREAD, waiting)
        target = self.capture.size + waiting[0]
        while self.capture.size < target:
            self.capture.add(os.read(self.fd, min(_CHUNK, target - self.capture.size)))

    def discard(self) -> None:
        """Throw away one chunk, or notice that the last writer is gone."""
        try:
            ended = not os.read(self.fd, _CHUNK)
        except BlockingIOError:
            ended = False
        if ended:
            self.close()

    def close(self) -> None:
        if self.open:
            self.open = False
            os.close(self.fd)


class _Drain:
    """Reads FIFOs that background processes still hold, so that these are neither blocked nor killed.

    One pass a hundredth of a second: an endless writer is slowed, and costs the driver next to nothing.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake: int | None = None

    def take(self, output: _Output) -> None:
        with self._lock:
            if self._wake is None:
                self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._selector.register(self._wake, selectors.EVENT_READ)
                threading.Thread(target=self._run, daemon=True, name="forkroll-drain").start()
            self._selector.register(output.fd, selectors.EVENT_READ, data=output)
            os.eventfd_write(self._wake, 1)

    def drop(self, output: _Output) -> None:
        """Close it if it is still held: its sandbox is gone."""
        with self._lock:
            if output.open:
                self._selector.unregister(output.fd)
                output.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                with self._lock:
                    if key.data is None:
                        os.eventfd_read(key.fd)
                    elif key.data.open:
                        self._discard(key.data)
            time.sleep(0.01)

    def _discard(self, output: _Output) -> None:
        fd = output.fd
        output.discard()
        if not output.open:
            # Closing took the descriptor out of the kernel's set; this takes it out of Python's.
            self._selector.unregister(fd)


_DRAIN = _Drain()


@dataclass(frozen=True)
class Ran:
    """How one script ended inside."""

    output: bytes
    status: int
    signal: int | None
    timed_out: bool
    size: int
    sha256: str
    cut_at: int | None
    characters: int | None = None

    def observation(self) -> Observation:
        ended, code = Exit.EXITED, None
        if self.timed_out:
            ended = Exit.TIME_LIMIT
        elif self.signal is not None:
            ended = Exit.SIGNAL
        else:
            code = self.status
        return Observation(
            output=self.output,
            exit_code=code,
            ended=ended,
            signal=self.signal if ended is Exit.SIGNAL else None,
            size=self.size,
            sha256=self.sha256,
            cut_at=self.cut_at,
            characters=self.characters,
        )


@dataclass(frozen=True)
class _End:
    """What the runner reported."""

    status: int
    signal: int | None
    timed_out: bool
    alive: tuple[str, ...] | None
    """Names of the processes that are left; None where the runner cannot say."""


def _ran(end: _End, capture: _Capture) -> Ran:
    return Ran(
        output=capture.kept(),
        status=end.status,
        signal=end.signal,
        timed_out=end.timed_out,
        size=capture.size,
        sha256=capture.sha256(),
        cut_at=capture.cut_at,
        characters=capture.characters(),
    )


def not_run(reason: str) -> Observation:
    """The observation of an action that no shell can take."""
    output = f"forkroll: not run: {reason}\n".encode()
    return Observation(
        output=output,
        exit_code=None,
        ended=Exit.NOT_RUN,
        size=len(output),
        sha256=hashlib.sha256(output).hexdigest(),
    )


def _sealed(token: str) -> str:
    """The token, which the step sees in its FIFO's name, and a seal, which it does not: without it no report counts."""
    return f"{token}.{secrets.token_hex(8)}"


def _printable(output: bytes | bytearray) -> str:
    return output.decode("utf-8", "replace").strip()


def environment(*layers: Mapping[str, str]) -> bytes:
    """The exact environment of every action, as the runner reads it; later layers win."""
    merged = {name: value for layer in layers for name, value in layer.items()}
    for name, value in merged.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise ConfigError(f"not a variable that a sandbox can have: {name!r}")
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in merged.items()) + b"\0"


class Wire(Protocol):
    """As much of a stream socket as a shell needs."""

    def fileno(self) -> int: ...
    def setblocking(self, flag: bool, /) -> None: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class Shell:
    """One runner, talked to over `wire`. Not for two threads at once: steps follow one another."""

    def __init__(self, wire: Wire, *, steps: Path, inside: str, interrupt: Callable[[], None]) -> None:
        self._wire = wire
        self._steps = steps
        """Where the step FIFOs lie on the host."""
        self._inside = inside
        """Where the same folder lies inside."""
        self._interrupt = interrupt
        """Asks the runner, by SIGUSR1, to end the running step."""
        self._key = secrets.token_hex(8).encode()
        self._report = bytearray()
        self._lost: str | None = None
        self._alive: tuple[str, ...] | None = ()
        self._held: list[_Output] = []

    def begin(self, env: bytes) -> None:
        """Hand over the environment and wait until the runner answers."""
        with contextlib.suppress(OSError):  # what went wrong is read below
            self._wire.sendall(self._key + b"\0" + env)
        deadline = time.monotonic() + _GRACE_S
        while b"ready\n" not in self._report:
            self._wire.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                chunk = self._wire.recv(_CHUNK)
            except (TimeoutError, ConnectionError):
                chunk = b""
            self._report += chunk
            if not chunk:
                raise self._lose("the sandbox did not start: " + _printable(self._report))
        self._wire.setblocking(False)

    def act(self, command: str, *, timeout_s: float, output_bytes: int) -> Observation:
        """Run one action of the model."""
        script = clean_text(command).encode("utf-8")
        if b"\0" in script:
            return not_run("the action holds a NUL byte")
        return self._run(script, "c", timeout_s=timeout_s, keep=output_bytes).observation()

    def own(self, script: str) -> Ran:
        """Run the driver's own `script`; its output comes back whole."""
        ran = self._run(os.fsencode(script), "p", timeout_s=_INTERNAL_S, keep=None)
        if ran.timed_out:
            raise SandboxError(f"the sandbox took over {_INTERNAL_S:g} s for the driver's own work")
        return ran

    def processes(self) -> tuple[str, ...] | None:
        """Names of the processes alive now, sorted; None when it cannot be said.

        Where the last step left none this costs nothing: none can have come since. Else it is looked until two
        looks agree, or `_LOOKS` times.
        """
        self._demand()
        for _ in range(_LOOKS):
            if not self._alive:
                break
            before, self._alive = self._alive, self._look()
            if before == self._alive and _VANISHED not in before:
                break
        return None if self._alive is None else tuple(name for name in self._alive if name != _VANISHED)

    def _look(self) -> tuple[str, ...] | None:
        time.sleep(_SETTLE_S)
        sealed = _sealed(secrets.token_hex(8))
        self._send(sealed, "l", b"")
        return self._follow(sealed, None, _GRACE_S).alive

    def read_file(self, path: str) -> bytes:
        ran = self.own(f"cat -- {shlex.quote(path)}")
        if ran.status or ran.signal:
            raise FileNotFoundError(errno.ENOENT, _printable(ran.output), path)
        return ran.output

    def write_file(self, path: str, content: bytes) -> None:
        token = secrets.token_hex(8)
        passed = self._steps / f"{token}.in"
        passed.write_bytes(content)
        passed.chmod(0o644)
        folder, target = shlex.quote(os.path.dirname(path) or "."), shlex.quote(path)
        try:
            source = shlex.quote(f"{self._inside}/{token}.in")
            ran = self.own(f"mkdir -p -- {folder} && cat {source} >{target}")
        finally:
            passed.unlink()
        if ran.status or ran.signal:
            raise OSError(errno.EIO, _printable(ran.output), path)

    def close(self) -> None:
        """Forget the runner, which is dead by now, and what its processes held."""
        self._lost = self._lost or "it is closed"
        self._wire.close()
        for output in self._held:
            _DRAIN.drop(output)
        self._held.clear()

    def _lose(self, why: str) -> SandboxError:
        self._lost = why
        return SandboxError(f"sandbox lost: {why}")

    def _demand(self) -> None:
        if self._lost is not None:
            raise SandboxError(f"sandbox lost: {self._lost}")

    def _run(self, script: bytes, kind: str, *, timeout_s: float, keep: int | None) -> Ran:
        self._demand()
        token = secrets.token_hex(8)
        fifo = self._steps / token
        with contextlib.ExitStack() as cleanup:
            os.mkfifo(fifo)
            cleanup.callback(fifo.unlink, missing_ok=True)
            fifo.chmod(0o622)
            output = _Output(fifo, keep)
            closing = cleanup.enter_context(contextlib.ExitStack())
            closing.callback(output.close)
            if len(script) > _INLINE:
                kind, script = self._by_file(token, script, kind, cleanup)
            sealed = _sealed(token)
            self._send(sealed, kind, script)
            end = self._follow(sealed, output, timeout_s)
            self._alive = end.alive
            if output.open:
                output.finish()
                closing.pop_all()
                self._hold(output)
        return _ran(end, output.capture)

    def _follow(self, token: str, output: _Output | None, timeout_s: float) -> _End:
        poll = select.poll()
        poll.register(self._wire, select.POLLIN)
        if output is not None:
            poll.register(output.fd, select.POLLIN)
        deadline, lost_at = time.monotonic() + timeout_s, math.inf
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                lost_at = min(lost_at, time.monotonic() + _GRACE_S)
                if time.monotonic() > lost_at:
                    raise self._lose(f"the runner did not end a step within {_GRACE_S:g} s of its time limit")
                self.end_step()
                # And again: the step may not have begun when this was sent.
                left = _AGAIN_S
                deadline = time.monotonic() + left
            for fd, _ in poll.poll(math.ceil(left * 1000)):
                if output is None or fd != output.fd:
                    self._read_report()
                elif output.open:
                    output.pull()
                    if not output.open:
                        poll.unregister(fd)
            end = self._find_end(token, interrupted=lost_at < math.inf)
            if end is not None:
                return end

    def _find_end(self, token: str, *, interrupted: bool) -> _End | None:
        report = rb"^%s (\d+) ([01]) (\d+) ([=?])(.*)\n" % re.escape(token.encode())
        match = re.search(report, self._report, re.MULTILINE)
        if match is None:
            return None
        status, cut, pid = int(match[1]), match[2] == b"1", match[3]
        alive = tuple(sorted(match[5].decode("ascii").split())) if match[4] == b"=" else None
        if cut:
            return _End(status, None if interrupted else signal.SIGKILL, interrupted, alive)
        died = status > 128 and re.search(rb": line \d+:\s+%s " % pid, self._report)
        return _End(status, status - 128 if died else None, False, alive)

    def end_step(self) -> None:
        """Ask the runner to end the step that is running, if one is. Any thread may."""
        try:
            self._interrupt()
        except OSError as error:
            raise self._lose(f"the runner is gone ({error})") from error

    def _by_file(self, token: str, script: bytes, kind: str, cleanup: contextlib.ExitStack) -> tuple[str, bytes]:
        path = self._steps / f"{token}.sh"
        path.write_bytes(script)
        path.chmod(0o644)
        cleanup.callback(path.unlink, missing_ok=True)
        if kind == "p":
            return "p", os.fsencode(f". {shlex.quote(f'{self._inside}/{token}.sh')}")
        return ("f" if len(script) <= MAX_ARGUMENT else "s"), b""

    def _send(self, token: str, kind: str, script: bytes) -> None:
        self._read_report(_STRAY_CHUNKS)  # notices of earlier steps
        self._report.clear()
        try:
            self._wire.setblocking(True)
            self._wire.sendall(b"%s\0%s\0%s\0%s\0" % (self._key, token.encode(), kind.encode(), script))
        except OSError as error:
            raise self._lose(f"the runner is gone ({error})") from error
        finally:
            self._wire.setblocking(False)

    def _read_report(self, chunks: int = 1) -> None:
        """Take some of what the runner has said; its end is the sandbox's.

        Not all at once: a flood on this way must neither hide a report nor keep us from looking at the clock.
        """
        for _ in range(chunks):
            try:
                chunk = self._wire.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lose(f"the runner is gone ({error})") from error
            if not chunk:
                raise self._lose("the runner is gone; it said: " + _printable(self._report[-300:]))
            self._report += chunk
            del self._report[:-_REPORT_BYTES]

    def _hold(self, output: _Output) -> None:
        self._held = [held for held in self._held if held.open]
        self._held.append(output)
        _DRAIN.take(output)
