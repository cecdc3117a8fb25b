"""A small single-threaded process that starts sandboxes for a driver and ends them when the driver ends.

Run as `python -I -S spawner.py FD ROOT`. FD is a SOCK_SEQPACKET socket to the driver; a request is one JSON
object, an answer is one. Everything the driver made lies in the folder ROOT.

- It forks; the driver, which has threads and much memory, does not.
- When the socket ends (the driver is done, or dead) it kills what it started, removes the control groups and
  ROOT, and ends. When it is killed itself, its sandboxes die with it (PDEATHSIG).
- It imports the standard library only, and little of that: starting it takes the driver 30 ms once.

In a namespace sandbox the runner is PID 1 of a private PID namespace, root of a user namespace in which
nobody else exists, in a root file system that is an overlay; the host's programs are bound read-only on top.
A driver that is root hands the sandbox to a user id that owns nothing else: the real root may write /proc/sys.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import platform
import resource
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

_CLONE, _PIVOT_ROOT = {"x86_64": (56, 155), "aarch64": (220, 41)}.get(platform.machine(), (-1, -1))
# These are the same on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442

_NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""User, mount, PID, network, IPC, UTS."""
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_TREE_CLONE, _TREE_CLOEXEC = 1, 0o2000000
_MOVE_FROM_FD, _MOVE_TO_FD = 0x4, 0x40
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MNT_DETACH = 2

_KEPT_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 10)
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE: what root in a container is
used to. Not SYS_ADMIN: the read-only binds could be made writable with it."""
_HEADROOM = 16
"""Processes that the runner may have beyond what its actions may."""


def _call(doing: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{doing}: {os.strerror(code)}")
    return result


def _syscall(doing: str, number: int, *arguments: Any) -> int:
    return _call(doing, _LIBC.syscall(ctypes.c_long(number), *arguments))


def _mount(kind: str, target: str, flags: int, options: str) -> None:
    name, place = kind.encode(), target.encode()
    result = _LIBC.mount(name, place, name, ctypes.c_ulong(flags), options.encode())
    _call(f"mount {kind} on {target}", result)


def _detached(source: str, attributes: int) -> int:
    """A copy of the mounts at and below `source`, attached nowhere yet, with `attributes` set on all."""
    flags = _TREE_CLONE | _TREE_CLOEXEC | _AT_RECURSIVE
    tree = _syscall(f"open_tree {source}", _OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags)
    if attributes:
        change = struct.pack("=QQQQ", attributes, 0, 0, 0)
        number, flags = _MOUNT_SETATTR, _AT_EMPTY_PATH | _AT_RECURSIVE
        _syscall(f"mount_setattr {source}", number, tree, b"", flags, change, ctypes.c_size_t(len(change)))
    return tree


def _attach(tree: int, target: str) -> None:
    _syscall(f"bind on {target}", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_FROM_FD)
    os.close(tree)


def _overlay(lower: int, upper: int, work: int) -> int:
    """An overlay of three open folders, attached nowhere yet. Nothing of it is ever flushed to disk."""
    context = _syscall("fsopen overlay", _FSOPEN, b"overlay", 1)
    options = {
        "lowerdir": f"/proc/self/fd/{lower}",
        "upperdir": f"/proc/self/fd/{upper}",
        "workdir": f"/proc/self/fd/{work}",
    }
    for name, value in options.items():
        _syscall(f"overlay {name}", _FSCONFIG, context, 1, name.encode(), value.encode(), 0)
    for name in ("userxattr", "volatile"):
        _syscall(f"overlay {name}", _FSCONFIG, context, 0, name.encode(), None, 0)
    _syscall("overlay create", _FSCONFIG, context, 6, None, None, 0)
    mounted = _syscall("overlay fsmount", _FSMOUNT, context, 1, _NODEV | _NOSUID)
    os.close(context)
    return mounted


class _Folders:
    """The sandbox's root: its layers, opened while we may still pass through folders closed to others."""

    def __init__(self, spec: dict[str, Any]) -> None:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        self._at = os.open(spec["at"], flags)
        self._copy = _detached(spec["copy"], _NODEV | _NOSUID) if spec["copy"] else None
        layers = () if spec["copy"] else ("lower", "upper", "work")
        self._layers = [os.open(spec[layer], flags) for layer in layers]

    def mount(self) -> None:
        """Mount the root and make it the current folder."""
        root = _overlay(*self._layers) if self._copy is None else self._copy
        _syscall("move root", _MOVE_MOUNT, root, b"", self._at, b"", _MOVE_FROM_FD | _MOVE_TO_FD)
        os.fchdir(root)


def _build_root(spec: dict[str, Any]) -> None:
    _call("make mounts private", _LIBC.mount(None, b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None))
    trees = [(_detached(source, _RDONLY | _NOSUID), target) for source, target in spec["binds"]]
    devices = [(_detached(f"/dev/{name}", 0), f"dev/{name}") for name in spec["devices"]]
    folders = _Folders(spec)
    if spec["user"] is not None:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    folders.mount()
    for tree, target in [*trees, *devices]:
        _attach(tree, target)
    _mount("proc", "proc", _NOSUID | _NODEV | _NOEXEC, "")
    _mount("devpts", "dev/pts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    _mount("tmpfs", spec["own_tmpfs"]["at"], _NOSUID | _NODEV, f"mode=0700,size={spec['own_tmpfs']['bytes']}")
    _syscall("pivot_root", _PIVOT_ROOT, b".", b".")
    _call("leave the old root", _LIBC.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1 | 64))  # SIOCSIFFLAGS, UP | RUNNING


def _limit(spec: dict[str, Any]) -> None:
    for name, value in spec["rlimits"].items():
        number = getattr(resource, f"RLIMIT_{name}")
        value += _HEADROOM if name == "NPROC" else 0
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))


def _drop_capabilities() -> None:
    for capability in range(64):
        if capability not in _KEPT_CAPABILITIES:
            _LIBC.prctl(24, ctypes.c_ulong(capability), 0, 0, 0)  # PR_CAPBSET_DROP; unknown ones fail
    low = sum(1 << capability for capability in _KEPT_CAPABILITIES)
    header, data = struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", low, low, 0, 0, 0, 0)
    _call("capset", _LIBC.capset(header, data))
    _call("no_new_privs", _LIBC.prctl(38, 1, 0, 0, 0))


def _run_bash(spec: dict[str, Any], wire: int) -> None:
    """Become the runner. Its environment is empty: what actions get, it is told."""
    os.umask(0o022)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for fd in range(3):
        os.dup2(wire, fd)
    os.closerange(3, 1 << 16)
    _call("pdeathsig", _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0))
    os.execve(spec["argv"][0], spec["argv"], {})


def _in_child(wire: int, steps: Sequence[Callable[[], None]]) -> None:
    """The life of a forked child: never returns. What goes wrong is said where "ready" is expected."""
    try:
        for step in steps:
            step()
    except BaseException as error:
        os.write(wire, f"forkroll: {error}\n".encode())
    finally:
        os._exit(70)


def _fork(namespaces: int) -> int:
    flags = ctypes.c_ulong(namespaces | signal.SIGCHLD)
    zero = ctypes.c_ulong(0)
    return _syscall("clone with new namespaces", _CLONE, flags, zero, zero, zero, zero)


def _start_namespace(spec: dict[str, Any], wire: int) -> int:
    waiting, go = os.pipe()
    own_thread = _own_thread_file(spec["cgroup"])
    child = _fork(_NEW_NAMESPACES)
    if child == 0:
        _in_child(
            wire,
            [
                lambda: os.close(go),
                lambda: _join_alone(own_thread),
                lambda: _wait_for_maps(waiting),
                lambda: _build_root(spec),
                lambda: socket.sethostname("sandbox"),
                _loopback_up,
                lambda: _limit(spec),
                _drop_capabilities,
                lambda: _run_bash(spec, wire),
            ],
        )
    try:
        _map_ids(child, spec["user"])
        if own_thread is None and spec["cgroup"] is not None:
            _write(f"{spec['cgroup']}/cgroup.procs", str(child))
        os.write(go, b"g")
    except OSError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(waiting)
        os.close(go)
        if own_thread is not None:
            os.close(own_thread)
    return child


def _wait_for_maps(waiting: int) -> None:
    if os.read(waiting, 1) != b"g":
        raise OSError("the spawner is gone")


def _map_ids(child: int, user: int | None) -> None:
    """Root inside is `user` outside: ourselves where None."""
    if user is None:
        _write(f"/proc/{child}/setgroups", "deny")
    outside = (os.geteuid(), os.getegid()) if user is None else (user, user)
    _write(f"/proc/{child}/uid_map", f"0 {outside[0]} 1")
    _write(f"/proc/{child}/gid_map", f"0 {outside[1]} 1")


def _own_thread_file(group: str | None) -> int | None:
    """Where a thread moves itself into a control group of version 1; None without one.

    It is the one move that does not stop every fork on the machine: any other waits 4 to 16 ms for that.
    """
    if group is None or not os.path.exists(f"{group}/tasks"):
        return None
    return os.open(f"{group}/tasks", os.O_WRONLY | os.O_CLOEXEC)


def _join_alone(own_thread: int | None) -> None:
    if own_thread is not None:
        os.write(own_thread, b"0")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _start_local(spec: dict[str, Any], wire: int) -> int:
    child = os.fork()
    if child == 0:
        _in_child(
            wire,
            [
                os.setsid,
                _adopt_orphans,
                lambda: os.chdir("/"),
                lambda: _limit(spec),
                lambda: _run_bash(spec, wire),
            ],
        )
    return child


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies: a session of its own is no way out."""
    _call("become a subreaper", _LIBC.prctl(36, 1, 0, 0, 0))


def remove_tree(path: str) -> None:
    """Remove a folder that may hold folders closed even to their owner. What is gone already is no error."""
    try:
        _remove_here(path)
    except (OSError, RecursionError):  # deeper, or its paths longer, than we can go
        for command in (["chmod", "-R", "u+rwX", path], ["rm", "-rf", path]):
            os.waitpid(os.posix_spawnp(command[0], command, os.environ), 0)


def _remove_here(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        try:
            for name in os.listdir(path):
                _remove_here(os.path.join(path, name))
            os.rmdir(path)
        except PermissionError:
            if stat.S_IMODE(os.lstat(path).st_mode) & 0o700 == 0o700:
                raise
            os.chmod(path, 0o700)
            _remove_here(path)


class _Spawner:
    def __init__(self, control: socket.socket, root: str) -> None:
        self._control = control
        self._root = root
        self._living: dict[int, str | None] = {}
        """PID to control group."""
        self._guarded: list[tuple[str, str]] = []
        """Sockets of engines, and labels of the driver's containers there."""

    def serve(self) -> None:
        """Answer requests until the driver is gone; leave nothing."""
        _adopt_orphans()
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(self._control, 1 << 17, 1)
            except ConnectionError:
                message, fds = b"", []
            if not message:
                break
            request = json.loads(message)
            try:
                answer = self._answer(request, fds)
            except OSError as error:
                answer = {"error": str(error)}
            finally:
                for fd in fds:
                    os.close(fd)
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({**answer, "number": request["number"]}).encode())
        for engine, label in self._guarded:
            with contextlib.suppress(OSError, ValueError):  # an engine that is gone has no containers either
                _kill_containers(engine, label)
        for pid in list(self._living):
            self._end(pid)
        remove_tree(self._root)

    def _answer(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        if request["op"] == "end":
            self._end(request["pid"])
            return {}
        if request["op"] == "containers":
            self._guarded.append((request["engine"], request["label"]))
            return {}
        start = _start_local if request["op"] == "local" else _start_namespace
        os.set_inheritable(fds[0], False)
        pid = start(request, fds[0])
        self._living[pid] = request.get("cgroup")
        return {"pid": pid}

    def _end(self, pid: int) -> None:
        if pid not in self._living:
            return
        group = self._living.pop(pid)
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so still the same
        os.waitpid(pid, 0)
        self._sweep()
        if group is not None:
            with contextlib.suppress(OSError):
                os.rmdir(group)

    def _sweep(self) -> None:
        """Kill what dead local runners have left to us, until there is no more of it."""
        while True:
            orphans = [pid for pid in _children() if pid not in self._living]
            if not orphans:
                return
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, 0)


def _kill_containers(engine: str, label: str) -> None:
    """Kill what bears `label`; the engine removes it. Once more, for what was being started meanwhile."""
    for pause in (0.0, 1.0):
        time.sleep(pause)
        filters = "".join(f"%{byte:02X}" for byte in json.dumps({"label": [label]}).encode())
        containers = json.loads(ask_engine(engine, "GET", f"/containers/json?all=1&filters={filters}"))
        if not containers:
            return
        for container in containers:
            ask_engine(engine, "DELETE", f"/containers/{container['Id']}?force=1&v=1")


def ask_engine(engine: str, method: str, path: str) -> bytes:
    """The body of what the engine at a socket answers; OSError when none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.settimeout(30)
        wire.connect(engine)
        # HTTP/1.0: the answer ends with the connection.
        wire.sendall(f"{method} {path} HTTP/1.0\r\nHost: engine\r\n\r\n".encode())
        answer = b"".join(iter(lambda: wire.recv(1 << 16), b""))
    return answer.partition(b"\r\n\r\n")[2]


def _children() -> Iterator[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        yield from map(int, file.read().split())


if __name__ == "__main__":
    _Spawner(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]).serve()
