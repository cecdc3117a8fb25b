"""Sandboxes of Linux namespaces: no daemon, no image registry, no root needed.

Inside: a private root whose writable layer catches every write, the host's programs read-only, no network but
loopback, a private process table with the runner as PID 1. Outside nothing changes but the sandbox's own folder,
from whose upper layer the state digest is read.

The image's tree is copied once, as the lower layer of all its sandboxes; it is never written to.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import SandboxError
from harness.sandbox.archive import NotCaptured
from harness.sandbox.layers import CopiedLayer, OverlayLayer, Place, capture, restore
from harness.sandbox.live import (
    LiveProvider,
    LiveSandbox,
    Places,
    Prepared,
    copy_tree,
    environment_of,
    interpreter,
    make_control,
    make_diff_repository,
    start_tree,
)
from harness.sandbox.protocol import Image, SandboxLimits
from harness.sandbox.tree import ImageEntries, OverlayTree, ScannedTree, head_commit

CWD = "/testbed"
_INSIDE = "/opt/forkroll"
_PATH = f"{_INSIDE}/bin:/usr/local/bin:/usr/bin:/bin"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_OWN = f"{_INSIDE}/own"
"""A small tmpfs for the driver's own short-lived files. The only one: whatever else an action may write, /dev/shm
included, lies in the upper layer, where a snapshot finds it."""
_OWN_BYTES = 64 * 1024 * 1024
_FOLDERS = ("proc", "dev/pts", "dev/shm", "root", "home", "opt/forkroll", "run", "srv", "mnt", "media", "sys")
_PROGRAMS = ("usr", "bin", "sbin", "etc")
"""Folders of the host that are bound, with each lib*."""
_STICKY = ("tmp", "var/tmp", "dev/shm")
_OWN_USERS = (0x70000000, 64_999)
"""User ids that nothing else on a machine has, tried in order: root inside is this one outside."""


class NamespaceProvider(LiveProvider):
    """An overlay and a set of namespaces, one a sandbox."""

    name = "namespace"
    isolated = True

    def __init__(self, *, limits: SandboxLimits, scratch: Path, overlay: bool = True) -> None:
        super().__init__(limits=limits, scratch=scratch)
        self._user = _own_user()
        self._overlay = overlay
        """False: a private copy of the tree for each sandbox; slower to start, and to digest."""
        self._groups = memory_groups() if limits.memory_bytes is not None else None
        self._entries: dict[str, ImageEntries] = {}
        self._binds = _program_binds()
        self._tried = False
        limited = self._groups is not None or limits.memory_bytes is None
        self.degraded = tuple(namespace_gaps(memory_group=limited))

    def empty_tree(self) -> Path:
        """An empty folder that goes with the provider, whatever ends it."""
        with self._lock:
            self._open()
        return self._new_folder("tree")

    def _prepare(self, image: Image) -> Prepared:
        start = start_tree(image)
        folder, head = self._new_folder("image"), head_commit(start)
        lower = folder / "lower"
        _make_skeleton(lower, self._binds)
        copy_tree(start, lower / "testbed")
        make_diff_repository(folder / "git", head, None)
        if self._user is not None:
            _give_away(lower, self._user)
        prepared = Prepared(image, folder, head)
        self._try_overlay(prepared)
        if self._overlay:
            self._entries[image.name] = ImageEntries(lower / "testbed")
        return prepared

    def _try_overlay(self, prepared: Prepared) -> None:
        """Fall back to copies, and say so, where an overlay cannot be mounted (scratch on an overlay, say)."""
        if self._tried:
            return
        self._tried = True
        if self._overlay:
            try:
                with contextlib.ExitStack() as stack:
                    self._start(prepared, stack, lambda: None, None)
            except SandboxError as error:
                if "overlay" not in str(error):
                    raise
                self._overlay = False
                self.degraded += (
                    f"no overlay in {self._scratch}: each sandbox copies its tree, and limits.disk_bytes caps one "
                    f"file, not the sum ({error})",
                )

    def _begin(self, prepared: Prepared, stack: contextlib.ExitStack, snapshot: Path | None) -> LiveSandbox:
        return self._start(prepared, stack, None, snapshot)

    def _start(
        self,
        prepared: Prepared,
        stack: contextlib.ExitStack,
        digest: Callable[[], str | None] | None,
        snapshot: Path | None,
    ) -> LiveSandbox:
        folder = self._new_folder("sandbox", stack)
        control = make_control(folder / "control", interpreter())
        layers = self._make_layers(prepared, folder)
        if snapshot is not None:
            with self._meter.measure("restore"):
                restore(snapshot, self._place(prepared, folder))
        request = self._request(prepared, layers.request, control, stack)
        env = environment_of(prepared.image, path=_PATH, home="/root")
        shell, pid = self._launch(request, steps=control / "steps", inside=f"{_INSIDE}/steps", env=env, stack=stack)
        return LiveSandbox(
            shell,
            places=Places(cwd=CWD, steps=f"{_INSIDE}/steps", git=f"{_INSIDE}/git", temporary=_OWN),
            prepared=prepared,
            limits=self.limits,
            meter=self._meter,
            digest=digest or self._digest(prepared, folder),
            digest_method="overlay" if self._overlay else "scan",
            pid=pid,
            door=self._door(pid),
            env=env,
            capture=_Capture(layers.changed, self._door(pid)[:-1], self.limits.disk_bytes),
            written=folder / "upper" if self._overlay else None,
        )

    def _door(self, pid: int) -> list[str]:
        """Root inside is one user id outside: ours, or one that the real root becomes on entering."""
        become = ["--preserve-credentials"] if self._user is None else []
        every = ("--user", "--mount", "--pid", "--net", "--ipc", "--uts")
        return ["nsenter", "--target", str(pid), *every, *become, "--"]

    def _digest(self, prepared: Prepared, folder: Path) -> Callable[[], str | None]:
        if self._overlay:
            return OverlayTree(self._entries[prepared.image.name], folder / "upper" / "testbed").digest
        return ScannedTree(folder / "copy" / "testbed").digest

    def _request(
        self, prepared: Prepared, layers: Mapping[str, str | None], control: Path, stack: contextlib.ExitStack
    ) -> dict[str, Any]:
        processes = self.limits.processes
        objects = prepared.folder / "lower" / "testbed" / ".git" / "objects"
        binds = [
            *self._binds,
            (str(control), f"{_INSIDE}/"),
            (str(prepared.folder / "git"), f"{_INSIDE}/git"),
            *([(str(objects), f"{_INSIDE}/git/objects")] if objects.is_dir() else []),
        ]
        runner = f"{_INSIDE}/runner.bash"
        return {
            "op": "namespace",
            "argv": [
                *("/bin/bash", "--noprofile", "--norc", runner, f"{_INSIDE}/steps", CWD),
                "" if processes is None else str(processes),
            ],
            "user": self._user,
            "binds": [(source, target.strip("/")) for source, target in binds],
            "devices": _DEVICES,
            "own_tmpfs": {"at": _OWN.strip("/"), "bytes": _OWN_BYTES},
            "rlimits": self._rlimits(),
            "cgroup": self._groups and _make_group(self._groups, self.limits.memory_bytes, stack),
            **layers,
        }

    def _make_layers(self, prepared: Prepared, folder: Path) -> "_Layers":
        """The folders that the root is made of; they belong to the sandbox's user."""
        lower, at = prepared.folder / "lower", folder / "root"
        at.mkdir()
        if not self._overlay:
            copy_tree(lower, folder / "copy")
            return _Layers({"copy": str(folder / "copy"), "at": str(at)}, CopiedLayer(folder / "copy"))
        upper, work = folder / "upper", folder / "work"
        for layer in (upper, work):
            layer.mkdir()
            layer.chmod(0o755)
            if self._user is not None:
                os.chown(layer, self._user, self._user)
        request = {"copy": None, "at": str(at), "lower": str(lower), "upper": str(upper), "work": str(work)}
        return _Layers(request, OverlayLayer(upper, lower))

    def _place(self, prepared: Prepared, folder: Path) -> Place:
        covered = [target for _, target in self._binds] + ["/proc", "/dev/pts", _INSIDE]
        sealed = [os.fsencode(path.strip("/")) for path in (*covered, *(f"/dev/{name}" for name in _DEVICES))]
        if self._overlay:
            return Place(folder / "upper", prepared.folder / "lower", self._user, sealed)
        return Place(folder / "copy", None, self._user, sealed)

    def _rlimits(self) -> dict[str, int]:
        limits = {"CORE": 0}
        if self.limits.processes is not None:
            limits["NPROC"] = self.limits.processes
        if self.limits.disk_bytes is not None:
            limits["FSIZE"] = self.limits.disk_bytes
        if self.limits.memory_bytes is not None and self._groups is None:
            limits["DATA"] = self.limits.memory_bytes
        return limits


@dataclass(frozen=True)
class _Layers:
    """What a root is made of: as the spawner is told, and the part that changes."""

    request: Mapping[str, str | None]
    changed: OverlayLayer | CopiedLayer


@dataclass(frozen=True)
class _Capture:
    """Snapshots of one sandbox, taken from outside.

    Where a file is closed even to us, its owner, a process goes into the sandbox's user namespace, whose root may
    read all that is its user's, and looks from there. A private copy with such a file is not captured.
    """

    layer: OverlayLayer | CopiedLayer
    door: Sequence[str]
    limit: int | None

    def mark(self) -> str | None:
        """Names the present state; None where something is closed to us."""
        try:
            return self.layer.mark()
        except (OSError, NotCaptured):
            return None

    def write(self, into: Path) -> bool:
        """False when this state cannot be captured."""
        try:
            capture(self.layer, into, limit=self.limit)
        except NotCaptured:
            return False
        except PermissionError:
            return isinstance(self.layer, OverlayLayer) and self._from_inside(self.layer, into)
        except OSError:  # a path too long, no room
            return False
        return True

    def _from_inside(self, layer: OverlayLayer, into: Path) -> bool:
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); from harness.sandbox.layers import main; main(*sys.argv[2:])"
        )
        own = str(Path(__file__).parents[2])
        limit = "" if self.limit is None else str(self.limit)
        told = [own, str(layer.upper), str(layer.lower), str(into), limit]
        nsenter, target, pid, user, *_ = self.door
        enter = [nsenter, target, pid, user, "--preserve-credentials", "--"]
        done = subprocess.run([*enter, sys.executable, "-I", "-S", "-c", code, *told], capture_output=True, check=False)
        return done.returncode == 0


def namespace_gaps(*, memory_group: bool | None = None) -> list[str]:
    """What namespace sandboxes cannot cap on this machine, a line each."""
    gaps = []
    if memory_group is None:
        memory_group = memory_groups() is not None
    if not memory_group:
        gaps.append("memory: limits.memory_bytes caps one process, not the sum (no writable control group)")
    if _kernel() < (5, 14):
        gaps.append("processes: before Linux 5.14 limits.processes counts over all sandboxes of a user")
    return gaps


def available() -> str | None:
    """None when namespace sandboxes work here, by trying; else why not and what mends it."""
    if sys.platform != "linux" or _kernel() < (5, 12):
        return f"namespace sandboxes need Linux 5.12 or later; this is {os.uname().sysname} {os.uname().release}"
    if shutil.which("bash", path="/bin:/usr/bin") is None:
        return "namespace sandboxes need /bin/bash: install bash"
    with NamespaceProvider(limits=SandboxLimits(), scratch=Path(tempfile.gettempdir())) as provider:
        try:
            with provider.start(Image(name="try", tree=provider.empty_tree())) as sandbox:
                seen = sandbox.act("echo $PPID", timeout_s=10).output
        except SandboxError as error:
            return f"{error}; {_remedy()}"
    return None if seen == b"1\n" else f"a namespace sandbox starts but is not one: PPID {seen!r}"


def _remedy() -> str:
    switches = {
        "kernel/unprivileged_userns_clone": "1",
        "kernel/apparmor_restrict_unprivileged_userns": "0",
    }
    for name, right in switches.items():
        path = Path("/proc/sys") / name
        if path.exists() and path.read_text().strip() != right:
            return f"as root: sysctl -w {name.replace('/', '.')}={right}"
    if Path("/proc/sys/user/max_user_namespaces").read_text().strip() == "0":
        return "as root: sysctl -w user.max_user_namespaces=15000"
    return "in a container: allow user namespaces and mounts (--privileged), or use the docker sandbox"


def _kernel() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.replace("-", ".").split(".")
    return int(major), int(minor)


def _own_user() -> int | None:
    """The user outside that root inside is; None: ourselves, because we are an ordinary user."""
    if os.geteuid() != 0:
        return None
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for user in _OWN_USERS:
        if any(first <= user < first + count for first, _, count in ranges):
            return user
    return None


def _program_binds() -> list[tuple[str, str]]:
    """The host's programs, and the interpreter where it lies elsewhere: (source, target)."""
    places = [f"/{name}" for name in sorted(os.listdir("/")) if name in _PROGRAMS or name.startswith("lib")]
    binds = [(place, place) for place in places if os.path.isdir(place) and not os.path.islink(place)]
    prefix = os.path.realpath(sys.base_prefix)
    if prefix != "/usr" and not prefix.startswith("/usr/"):
        binds.append((prefix, prefix))
    return binds


def _make_skeleton(lower: Path, binds: list[tuple[str, str]]) -> None:
    """The root's folders, and empty places for what is bound on top."""
    for name in _FOLDERS:
        (lower / name).mkdir(parents=True)
    for _, target in binds:
        (lower / target.strip("/")).mkdir(parents=True, exist_ok=True)
    for name in os.listdir("/"):
        if os.path.islink(f"/{name}") and (name in _PROGRAMS or name.startswith("lib")):
            (lower / name).symlink_to(os.readlink(f"/{name}"))
    for name in _STICKY:
        (lower / name).mkdir(parents=True, exist_ok=True)
        (lower / name).chmod(0o1777)
    for name in _DEVICES:
        (lower / "dev" / name).touch()
    for name, target in _DEV_LINKS.items():
        (lower / "dev" / name).symlink_to(target)


def _give_away(tree: Path, user: int) -> None:
    subprocess.run(["chown", "-R", "-h", f"{user}:{user}", "--", str(tree)], check=True, capture_output=True)


def memory_groups() -> Path | None:
    """The control group to make ours in; None where we may not."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            group = Path("/sys/fs/cgroup/memory") / path.strip("/")
        elif controllers == "":
            group = Path("/sys/fs/cgroup") / path.strip("/")
        else:
            continue
        if _can_cap_memory(group, unified=controllers == ""):
            return group
    return None


def _can_cap_memory(group: Path, *, unified: bool) -> bool:
    if not os.access(group, os.W_OK):
        return False
    control = group / "cgroup.subtree_control"
    return not unified or (control.exists() and "memory" in control.read_text().split())


def _make_group(parent: Path, limit: int | None, stack: contextlib.ExitStack) -> str:
    group = Path(tempfile.mkdtemp(prefix=f"forkroll-{os.getpid()}-", dir=parent))
    stack.callback(_remove_group, group)
    unified = (group / "memory.max").exists()
    (group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(limit))
    return str(group)


def _remove_group(group: Path) -> None:
    with contextlib.suppress(OSError):
        group.rmdir()
