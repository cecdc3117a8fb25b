"""One container with the action runner as its first process.

The runner talks through FIFOs in a folder of the driver's that is mounted read-only. It ends with its driver, because
its input ends then, and the engine removes what has ended. Its labels say whose it is.
"""

import contextlib
import errno
import os
import secrets
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.sandbox.engine import Engine
from harness.sandbox.protocol import SandboxLimits
from harness.sandbox.shell import RUNNER, Ran, Shell

INSIDE = "/opt/forkroll"
"""Where the driver's folder lies inside."""
OWN = f"{INSIDE}/own"
"""A small tmpfs for the driver's own short-lived files."""
_SHM_BYTES = 64 * 1024 * 1024
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "NET_BIND_SERVICE")
_PATIENCE_S = 15.0
_OWN_ROOM = 16
"""Processes that the driver's own work inside may need."""
_BECOME_RUNNER = (
    # Opened both ways first: so neither open waits, and a driver that died meanwhile is noticed.
    f"exec 3<>{INSIDE}/in 4<>{INSIDE}/out <{INSIDE}/in >{INSIDE}/out 2>&1 3>&- 4>&-; "
    'exec env -i bash --noprofile --norc "$@"'
)


@dataclass(frozen=True)
class Owner:
    """Whose containers are: this process, and one provider in it."""

    run: str
    """The run's folder; "" for none."""
    token: str = field(default_factory=lambda: f"{os.getpid()}-{secrets.token_hex(8)}")

    @property
    def label(self) -> str:
        """What all containers of this owner bear, and no others."""
        return f"forkroll.owner={self.token}"

    def labels(self) -> dict[str, str]:
        """Of a container. The start time tells the owner from a later process with its id."""
        return {
            "forkroll.owner": self.token,
            "forkroll.run": self.run,
            "forkroll.pid": str(os.getpid()),
            "forkroll.pid_start": _process_start(os.getpid()) or "",
            "forkroll.pid_space": _process_space(),
        }


def orphans(engine: Engine, run: str | None) -> list[str]:
    """Ids of containers whose owner is dead; of `run` alone where it is named."""
    wanted = ["forkroll.owner", f"forkroll.pid_space={_process_space()}"]
    if run is not None:
        wanted.append(f"forkroll.run={run}")
    return [one.id for one in engine.labelled(wanted) if not _owner_lives(one.labels)]


def _owner_lives(labels: Mapping[str, str]) -> bool:
    pid = labels.get("forkroll.pid", "")
    started = _process_start(int(pid)) if pid.isdigit() else None
    return started is not None and started == labels.get("forkroll.pid_start")


def _process_start(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _process_space() -> str:
    """Names the machine's present uptime and the PID namespace: process ids mean nothing beyond these."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return ""


@dataclass(frozen=True)
class Recipe:
    """What a container is made from."""

    name: str
    """Of the task's start state: a label, since a container is started ahead of the cell that will use it."""
    image: str
    cwd: str
    env: bytes
    """The exact environment of every action, as `shell.environment` makes it."""
    mounts: Mapping[str, Path]
    """Path below `INSIDE` -> folder of this machine, mounted read-only."""
    user: str | None
    """None: root inside."""
    network: bool
    cpus: float | None


class FifoWire:
    """Two FIFOs in a folder that a container sees: requests in, reports out. What the runner's `Shell` talks over."""

    def __init__(self, folder: Path) -> None:
        self._names = [folder / "in", folder / "out"]
        for name in self._names:
            os.mkfifo(name)
            name.chmod(0o666)  # the container's user may be anybody
        # Both ways: to open does not wait for a reader, and the reader sees no end before we are gone.
        self._requests = os.open(self._names[0], os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._reports = os.open(self._names[1], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._process: int | None = None
        self._timeout: float | None = None

    def watch(self, process: int | None) -> None:
        """The pidfd of the container's first process: its end ends the wait for its first word."""
        self._process = process

    def hide(self) -> None:
        """Remove the names; once both sides have opened them nobody else needs to."""
        for name in self._names:
            name.unlink(missing_ok=True)

    def fileno(self) -> int:
        """Where reports come."""
        return self._reports

    def setblocking(self, flag: bool, /) -> None:
        """As a socket's."""
        self._timeout = None if flag else 0.0

    def settimeout(self, seconds: float | None, /) -> None:
        """As a socket's."""
        self._timeout = seconds

    def sendall(self, data: bytes, /) -> None:
        """As a socket's; OSError when the runner takes nothing."""
        poll = select.poll()
        poll.register(self._requests, select.POLLOUT)
        left = memoryview(data)
        while left:
            if not poll.poll(_PATIENCE_S * 1000):
                raise OSError(errno.EPIPE, "the runner reads no requests")
            left = left[os.write(self._requests, left) :]

    def recv(self, size: int, /) -> bytes:
        """As a socket's: b"" when the runner is gone."""
        if self._timeout != 0.0:
            self._await_report()
        return os.read(self._reports, size)

    def close(self) -> None:
        """The runner sees the end of its input. A second time does nothing."""
        for fd in (self._requests, self._reports):
            if fd >= 0:
                os.close(fd)
        self._requests = self._reports = -1
        self.hide()

    def _await_report(self) -> None:
        poll = select.poll()
        for fd in (self._reports, self._process):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        if not poll.poll(None if self._timeout is None else self._timeout * 1000):
            raise TimeoutError


class _RoomyShell(Shell):
    """Makes room for the shell of the next step where earlier ones have used up all processes.

    The limit counts the runner's children like any other process, so a flood that was left in the background would
    keep the runner from starting anything ever again.
    """

    room: Callable[[int], None] | None = None

    def _run(self, script: bytes, kind: str, *, timeout_s: float, keep: int | None) -> Ran:
        if self.room is not None:
            self.room(_OWN_ROOM if kind == "p" else 1)
        return super()._run(script, kind, timeout_s=timeout_s, keep=keep)


class _ProcessRoom:
    """Raises a container's limit on processes by what the next step needs to be started, where it is exhausted."""

    def __init__(self, engine: Engine, container: str, count: Path, limit: int) -> None:
        self._engine, self._container, self._count = engine, container, count
        self._limit = self._now = limit

    def __call__(self, processes: int) -> None:
        with contextlib.suppress(OSError, ValueError):  # the container is gone: the step will say so
            wanted = max(self._limit, int(self._count.read_text()) + processes)
            if wanted != self._now:
                self._engine.limit_processes(self._container, wanted)
                self._now = wanted


@dataclass(frozen=True)
class Container:
    """A started container whose runner answers."""

    id: str
    pid: int | None
    """Of the runner, as the driver sees it; None where it cannot."""
    shell: Shell
    steps: Path
    """A folder that both sides see, at INSIDE/steps inside."""
    layers: tuple[Path, ...]
    """Its layers, the writable one first, where the driver may read them; else none."""
    process: int | None
    """pidfd of the runner."""
    closing: contextlib.ExitStack

    def alive(self) -> bool:
        """False when it has ended; an engine that went away with its containers is noticed so."""
        return self.process is None or not _ended(self.process, 0.0)

    def close(self) -> None:
        """End it; the engine removes it."""
        self.closing.close()


class Launcher:
    """Starts containers."""

    def __init__(self, engine: Engine, limits: SandboxLimits, owner: Owner) -> None:
        self._engine, self._limits, self._owner = engine, limits, owner

    def launch(self, recipe: Recipe, control: Path, stack: contextlib.ExitStack) -> Container:
        """Start a container that sees `control`, and wait until its runner answers. `stack` ends all of it."""
        make_control(control, recipe)
        wire = FifoWire(control)
        stack.callback(wire.close)
        container = self._engine.create(self._settings(recipe, control))
        try:
            facts = self._engine.start(container)
        except BaseException:
            self._engine.remove(container)  # by itself the engine removes only what has run
            raise
        pid = facts.pid if _is_first_process(facts.pid, container) else None
        process = _open_process(pid, stack)
        wire.watch(process)
        interrupt = partial(self._signal, container, process, signal.SIGUSR1)
        shell = _RoomyShell(wire, steps=control / "steps", inside=f"{INSIDE}/steps", interrupt=interrupt)
        stack.callback(shell.close)
        stack.callback(self._kill, container, process)
        shell.begin(recipe.env)
        wire.hide()
        shell.room = self._room(container, pid)
        return Container(container, pid, shell, control / "steps", _readable(facts.layers), process, stack)

    def _room(self, container: str, pid: int | None) -> Callable[[int], None] | None:
        limit = self._limits.processes
        count = None if pid is None else _process_count(pid)
        return None if limit is None or count is None else _ProcessRoom(self._engine, container, count, limit)

    def _settings(self, recipe: Recipe, control: Path) -> dict[str, Any]:
        """The container as the engine's API describes it."""
        processes = "" if self._limits.processes is None else str(self._limits.processes)
        runner = [f"{INSIDE}/runner.bash", f"{INSIDE}/steps", recipe.cwd, processes]
        return {
            "Image": recipe.image,
            "Entrypoint": ["bash", "--noprofile", "--norc", "-c", _BECOME_RUNNER, "bash", *runner],
            "Cmd": [],
            "Hostname": "sandbox",
            "User": recipe.user or "0:0",
            "WorkingDir": "/",
            "Env": ["BASH_ENV=", "ENV="],  # the image's would be read by the shell that becomes the runner
            "StopSignal": "SIGKILL",  # the runner, as first process, would let an engine that stops wait for SIGTERM
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": {**self._owner.labels(), "forkroll.image": recipe.name},
            "HostConfig": self._host_settings(recipe, control),
        }

    def _host_settings(self, recipe: Recipe, control: Path) -> dict[str, Any]:
        limits = self._limits
        bounds = {"core": 0} if limits.disk_bytes is None else {"core": 0, "fsize": limits.disk_bytes}
        settings: dict[str, Any] = {
            "AutoRemove": True,
            "NetworkMode": "default" if recipe.network else "none",
            "ShmSize": _SHM_BYTES,
            "CapDrop": ["ALL"],
            "CapAdd": list(_CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            "Ulimits": [{"Name": name, "Soft": value, "Hard": value} for name, value in bounds.items()],
            "LogConfig": {"Type": "none"},
            "Mounts": list(_mounts(recipe, control)),
        }
        if limits.memory_bytes is not None:
            settings |= {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}
        if limits.processes is not None:
            settings["PidsLimit"] = limits.processes
        if recipe.cpus is not None:
            settings["NanoCpus"] = int(recipe.cpus * 1e9)
        return settings

    def _signal(self, container: str, process: int | None, number: signal.Signals) -> None:
        """Signal the runner; through the engine where it is not ours to signal."""
        if process is not None:
            with contextlib.suppress(PermissionError):
                signal.pidfd_send_signal(process, number)
                return
        self._engine.signal(container, number.name)

    def _kill(self, container: str, process: int | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._signal(container, process, signal.SIGKILL)
        if process is None or not _ended(process, _PATIENCE_S):
            self._engine.remove(container)


def make_control(folder: Path, recipe: Recipe) -> None:
    """The driver's folder that a container sees."""
    for inner in ("steps", "own", *recipe.mounts):
        (folder / inner).mkdir(parents=True)
    (folder / "own").chmod(0o1777)  # a tmpfs takes the mode of the folder that it is mounted on
    (folder / "runner.bash").write_bytes(RUNNER.read_bytes())
    folder.chmod(0o755)


def _mounts(recipe: Recipe, control: Path) -> Iterator[dict[str, Any]]:
    yield {"Type": "bind", "Source": str(control), "Target": INSIDE, "ReadOnly": True}
    yield {"Type": "tmpfs", "Target": OWN, "TmpfsOptions": {"SizeBytes": _SHM_BYTES}}
    for name, source in recipe.mounts.items():
        yield {"Type": "bind", "Source": str(source), "Target": f"{INSIDE}/{name}", "ReadOnly": True}


def _open_process(pid: int | None, stack: contextlib.ExitStack) -> int | None:
    if pid is None:
        return None
    process = os.pidfd_open(pid)
    stack.callback(os.close, process)
    return process


def _ended(process: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def _is_first_process(pid: int, container: str) -> bool:
    """True when `pid` here is the container's: the engine may count in another PID namespace."""
    try:
        return pid > 0 and container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _process_count(pid: int) -> Path | None:
    """The file that says how many processes the container of `pid` has."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            file = Path("/sys/fs/cgroup", controllers, path.lstrip("/"), "pids.current")
            if controllers in ("pids", "") and file.exists():
                return file
    return None


def _readable(layers: tuple[Path, ...]) -> tuple[Path, ...]:
    """Only the real root may look into an engine's layers and at the marks of an overlay."""
    return layers if layers and os.geteuid() == 0 and os.access(layers[0], os.R_OK | os.X_OK) else ()
