"""What the live sandboxes share: the spawner's other end, the life of a sandbox, files, diffs, meters.

A provider keeps one folder of its own under `scratch`; a sandbox keeps one in there. Whoever ends first, the
driver, the spawner or the sandbox, the others clean up after it.
"""

import contextlib
import errno
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from harness.errors import SandboxError, attribute
from harness.record import Observation
from harness.sandbox import spawner
from harness.sandbox.disk import DiskWatch
from harness.sandbox.protocol import Image, Sandbox, SandboxLimits
from harness.sandbox.shell import RUNNER, Shell, environment

CACHE_PATTERNS = ("__pycache__/", ".pytest_cache/", "*.pyc")
"""Untracked files that a working diff leaves out, besides what .gitignore names."""

ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "TERM": "dumb",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
"""Of every action, besides PATH and HOME."""

_GIT_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tbare = false
\tfilemode = true
\tsymlinks = true
\tautocrlf = false
\tquotePath = true
"""


class Meter:
    """Counts and seconds by name: "start.n", "start.wall", "start.cpu" (of the driver's own thread)."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        wall, cpu = time.monotonic(), time.thread_time()
        try:
            yield
        finally:
            self._add(name, time.monotonic() - wall, time.thread_time() - cpu)

    def _add(self, name: str, wall: float, cpu: float) -> None:
        with self._lock:
            self.totals[f"{name}.n"] += 1
            self.totals[f"{name}.wall"] += wall
            self.totals[f"{name}.cpu"] += cpu


class Spawner:
    """The process that forks for us. One a provider; any thread may ask it."""

    def __init__(self, root: Path) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, (root / "spawner.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", spawner.__file__, str(theirs.fileno()), str(root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the driver's business
                cwd="/",
            )

    def start(self, request: Mapping[str, Any], wire: socket.socket) -> int:
        """Fork a sandbox whose runner talks over `wire`; its PID."""
        return int(self._ask(request, [wire.fileno()])["pid"])

    def end(self, pid: int) -> None:
        """Kill and reap it, and everything below it."""
        self._ask({"op": "end", "pid": pid}, [])

    def guard_containers(self, engine: str, label: str) -> None:
        """When the driver ends, kill the containers with `label` of the engine at the socket `engine`."""
        self._ask({"op": "containers", "engine": engine, "label": label}, [])

    def close(self) -> None:
        """End every sandbox and remove the folder."""
        self._control.close()
        self._process.wait()

    def _ask(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        with self._lock:
            self._asked += 1
            try:
                message = json.dumps({**request, "number": self._asked}).encode()
                socket.send_fds(self._control, [message], fds)
                answer = self._answer_to(self._asked)
            except OSError as error:
                raise SandboxError(f"the spawner is gone: {error}") from error
        if "error" in answer:
            raise SandboxError(f"the sandbox could not be started: {answer['error']}")
        return answer

    def _answer_to(self, number: int) -> dict[str, Any]:
        """Passes over the answers to requests whose caller was interrupted."""
        while True:
            message = self._control.recv(1 << 16)
            if not message:
                raise SandboxError("the spawner is gone")
            answer: dict[str, Any] = json.loads(message)
            if answer["number"] == number:
                return answer


@dataclass
class Prepared:
    """What a provider made of an image, once."""

    image: Image
    folder: Path
    """The provider's folder of this image."""
    head: str | None
    """The commit that the start tree is at; None without one."""
    index: bytes | None = None
    """git's index of that commit, refreshed inside a sandbox; None until the first diff asks for it."""
    lock: threading.Lock = field(default_factory=threading.Lock)


def make_diff_repository(folder: Path, head: str | None, alternate: Path | None) -> None:
    """A repository of ours to take diffs with: the image's objects, our configuration, no hooks, no index."""
    for inner in ("objects/info", "refs", "info"):
        (folder / inner).mkdir(parents=True)
    (folder / "HEAD").write_text(f"{head}\n" if head else "ref: refs/heads/none\n")
    (folder / "config").write_text(_GIT_CONFIG)
    (folder / "info" / "exclude").write_text("".join(f"{pattern}\n" for pattern in CACHE_PATTERNS))
    if alternate is not None:
        (folder / "objects" / "info" / "alternates").write_bytes(os.fsencode(alternate) + b"\n")


@dataclass(frozen=True)
class Places:
    """Where one sandbox finds things, as paths inside."""

    cwd: str
    steps: str
    git: str
    """The diff repository, read-only."""
    temporary: str
    """A folder for the driver's own short-lived files, outside the working tree."""


_DIFF = r"""
unset ${{!GIT_@}}
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_DIR={git} GIT_WORK_TREE={cwd} LC_ALL=C
own={temporary}/.forkroll.$$
mkdir "$own" || exit 3
export GIT_INDEX_FILE=$own/index GIT_OBJECT_DIRECTORY=$own GIT_ALTERNATE_OBJECT_DIRECTORIES={git}/objects
fail() {{ cat "$own/said"; rm -rf "$own"; exit 3; }}
[ -d {cwd} ] || {{ mkdir "$own/nothing"; GIT_WORK_TREE=$own/nothing; }}
cd "$GIT_WORK_TREE"
{raw}
{index}
git add --intent-to-add --ignore-errors --all . 2>/dev/null
git diff --binary --full-index --no-ext-diff --no-textconv --no-color --no-renames \
  --src-prefix=a/ --dst-prefix=b/ --submodule=short --ignore-submodules=dirty {base} 2>"$own/said" || fail
rm -rf "$own"
"""
_RAW = r"""
mkdir -p "$own/git/objects" "$own/git/refs" "$own/git/info"
cp {git}/HEAD {git}/config "$own/git/"
cp {git}/info/exclude "$own/git/info/"
echo '* !text !eol !ident !filter !working-tree-encoding !diff' >"$own/git/info/attributes"
GIT_DIR=$own/git
"""
_ATTRIBUTES_CHANGED = re.compile(rb'^diff --git "?a/(?:.*/)?\.gitattributes"? ', re.MULTILINE)
_MAKE_INDEX = r"""
git read-tree {base} 2>"$own/said" || fail
git update-index -q --refresh >/dev/null 2>&1
"""
_KEEP_INDEX = r"""
cat "$own/index" || fail
rm -rf "$own"
exit 0
"""


class Capture(Protocol):
    """How snapshots of one kind of sandbox are taken."""

    def mark(self) -> str | None:
        """See `Sandbox.change_mark`."""
        ...

    def write(self, into: Path) -> bool:
        """See `Sandbox.snapshot`."""
        ...


_ENTER = 'cd -- "$1"; shift; exec env -i "$@" TERM="${TERM:-dumb}" /bin/bash --noprofile --norc'


class LiveSandbox:
    """A running sandbox around one runner.

    `digest` and `digest_method` are how its state is seen, `door` what comes before a command line for this machine
    so that it runs inside, `env` the environment of its actions as `environment` makes it, `written` the folder on
    this machine that catches what is written inside (None: it cannot be seen, and the disk limit is not watched).
    """

    def __init__(
        self,
        shell: Shell,
        *,
        places: Places,
        prepared: Prepared,
        limits: SandboxLimits,
        meter: Meter,
        digest: Callable[[], str | None],
        digest_method: str,
        pid: int,
        door: Sequence[str],
        env: bytes,
        capture: "Capture | None" = None,
        written: Path | None = None,
    ) -> None:
        self._shell = shell
        self._places = places
        self._prepared = prepared
        self._limits = limits
        self._meter = meter
        self._digest = digest
        self.digest_method = digest_method
        """See `Sandbox`."""
        self.pid = pid
        """Of the runner, as the driver sees it."""
        self._door = door
        self._env = env
        self._capture = capture
        limit = limits.disk_bytes
        self._disk = None if written is None or limit is None else DiskWatch(written, limit, shell.end_step)

    def act(self, command: str, *, timeout_s: float) -> Observation:
        """Run `command`; every process of the step is ended when `timeout_s` has passed."""
        run = partial(self._shell.act, command, timeout_s=timeout_s, output_bytes=self._limits.output_bytes)
        with self._meter.measure("act"), attribute(SandboxError, "running an action"):
            return run() if self._disk is None else self._disk.act(run)

    def read_file(self, path: str) -> bytes:
        """Content of the file at `path` (relative paths: from the working tree); OSError when there is none."""
        return self._shell.read_file(path)

    def write_file(self, path: str, content: bytes) -> None:
        """Make the file at `path`, parents included; OSError when that cannot be."""
        self._shell.write_file(path, content)

    def digest(self) -> str | None:
        """Digest of the working tree and git HEAD (see `tree`); None when something cannot be read."""
        with self._meter.measure("digest"), attribute(SandboxError, "digesting the working tree"):
            return self._digest()

    def processes(self) -> tuple[str, ...] | None:
        """Names of the processes alive now, the runner apart, sorted; None when it cannot be said."""
        with attribute(SandboxError, "looking at the processes"):
            return self._shell.processes()

    def change_mark(self) -> str | None:
        """Names the present state of all that a snapshot holds; None when there is no cheap way to."""
        with self._meter.measure("mark"), attribute(SandboxError, "marking a state"):
            return None if self._capture is None else self._capture.mark()

    def snapshot(self, into: Path) -> bool:
        """Write all that was changed as one archive at `into`; False, and no file, when that cannot be."""
        with self._meter.measure("snapshot"), attribute(SandboxError, "taking a snapshot"):
            return self._capture is not None and self._capture.write(into)

    def shell_argv(self) -> list[str]:
        """Command line of a bash inside, in the working folder, with the environment of actions."""
        variables = [os.fsdecode(entry) for entry in self._env.split(b"\0") if entry]
        return [*self._door, "/bin/bash", "-c", _ENTER, "bash", self._places.cwd, *variables]

    def working_diff(self, base_commit: str) -> bytes:
        """Binary-safe `git diff` of the working tree against `base_commit`, untracked files included.

        Taken with a repository of ours and an index of our own, so that neither the agent's .git, index,
        configuration nor hooks matter; they stay untouched. Left out: what .gitignore names, and
        `CACHE_PATTERNS`, where it is not tracked. A repository within the tree is named, not carried. Renames
        are a removal and a new file. Where .gitattributes differs from the base commit's, no attribute is heeded:
        it would have the diff carry other bytes than the tree's.
        """
        with self._meter.measure("diff"), attribute(SandboxError, "taking the working diff"):
            index = self._index_script(base_commit)
            ran = self._shell.own(self._diff_script(base_commit, index))
            if _ATTRIBUTES_CHANGED.search(ran.output):
                ran = self._shell.own(self._diff_script(base_commit, index, raw=True))
        if ran.status or ran.signal:
            raise SandboxError("git could not take the diff: " + ran.output[-500:].decode("utf-8", "replace"))
        return ran.output

    def _diff_script(self, base: str, index: str, *, raw: bool = False) -> str:
        places = {name: shlex.quote(getattr(self._places, name)) for name in ("git", "cwd", "temporary")}
        without = _RAW.format(**places) if raw else ""
        return _DIFF.format(base=shlex.quote(base), index=index, raw=without, **places)

    def _index_script(self, base: str) -> str:
        prepared = self._prepared
        if base not in (prepared.head, "HEAD"):
            return _MAKE_INDEX.format(base=shlex.quote(base))
        with prepared.lock:
            if prepared.index is None:
                ran = self._shell.own(self._diff_script(base, _MAKE_INDEX.format(base="HEAD") + _KEEP_INDEX))
                if ran.status or ran.signal:
                    raise SandboxError("git could not read the start commit: " + repr(ran.output[-500:]))
                prepared.index = ran.output
                (prepared.folder / "git" / "index").write_bytes(ran.output)
        return f'cp {shlex.quote(self._places.git)}/index "$own/index"'


class LiveProvider:
    """Starts sandboxes; its folder, its spawner and whatever runs end with `close`."""

    name: str
    isolated: bool

    def __init__(self, *, limits: SandboxLimits, scratch: Path) -> None:
        self.limits = limits
        self.degraded: tuple[str, ...] = ()
        """What this machine does not give, a line each."""
        self._scratch = scratch
        self._meter = Meter()
        self._lock = threading.Lock()
        self._root: Path | None = None
        self._spawner: Spawner | None = None
        self._prepared: dict[str, Prepared] = {}
        self._preparing: dict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def facts(self) -> dict[str, Any]:
        """What a manifest should say of what sandboxes are made from."""
        return {}

    @property
    def measure(self) -> dict[str, float]:
        """Counts, wall and driver CPU seconds spent so far: prepare, start, act, digest, diff, end."""
        return dict(self._meter.totals)

    @contextlib.contextmanager
    def start(self, image: Image, *, snapshot: Path | None = None) -> Iterator[Sandbox]:
        """A fresh sandbox at the image's start state or the snapshot's; nothing of it is left when the context ends."""
        prepared = self.prepare(image)
        with contextlib.ExitStack() as stack:
            with self._meter.measure("start"), attribute(SandboxError, "starting a sandbox"):
                sandbox = self._begin(prepared, stack, snapshot)
            yield sandbox

    def prepare(self, image: Image) -> Prepared:
        """Make ready what every sandbox of `image` shares; `start` does so on first use."""
        with self._lock:
            self._open()
            turn = self._preparing[image.name]
        with turn:
            if image.name not in self._prepared:
                with self._meter.measure("prepare"), attribute(SandboxError, f"preparing {image.name}"):
                    self._prepared[image.name] = self._prepare(image)
            return self._prepared[image.name]

    def close(self) -> None:
        """End everything this provider started and remove its folder."""
        with self._lock:
            if self._spawner is not None:
                self._spawner.close()
            self._spawner, self._root = None, None
            self._prepared.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        if self._spawner is None:
            self._scratch.mkdir(parents=True, exist_ok=True)
            prefix = f"forkroll-{self.name}-{os.getpid()}-"
            root = Path(tempfile.mkdtemp(prefix=prefix, dir=self._scratch)).resolve()
            self._root, self._spawner = root, Spawner(root)

    def _prepare(self, image: Image) -> Prepared:
        raise NotImplementedError

    def _begin(self, prepared: Prepared, stack: contextlib.ExitStack, snapshot: Path | None) -> LiveSandbox:
        raise NotImplementedError

    def _new_folder(self, kind: str, stack: contextlib.ExitStack | None = None) -> Path:
        assert self._root is not None
        folder = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self._root))
        if stack is not None:
            stack.callback(spawner.remove_tree, str(folder))
        return folder

    def _launch(
        self,
        request: Mapping[str, Any],
        *,
        steps: Path,
        inside: str,
        env: bytes,
        stack: contextlib.ExitStack,
    ) -> tuple[Shell, int]:
        """Have the spawner start the runner, and wait until it answers."""
        assert self._spawner is not None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = self._spawner.start(request, theirs)
            except SandboxError:
                ours.close()
                raise
        stack.callback(self._end, pid)
        process = os.pidfd_open(pid)
        stack.callback(os.close, process)
        shell = Shell(
            ours,
            steps=steps,
            inside=inside,
            interrupt=lambda: signal.pidfd_send_signal(process, signal.SIGUSR1),
        )
        stack.callback(shell.close)
        stack.callback(_kill, process)
        shell.begin(env)
        return shell, pid

    def _end(self, pid: int) -> None:
        with self._meter.measure("end"), contextlib.suppress(SandboxError):
            if self._spawner is not None:
                self._spawner.end(pid)


def _kill(process: int) -> None:
    """Kill and wait here, without holding up the spawner, which only reaps."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll(10_000)


def make_control(folder: Path, interpreter: str) -> Path:
    """The driver's folder that a sandbox sees, read-only: the runner, the steps and the names of Python."""
    for inner in ("bin", "steps", "git", "own"):
        (folder / inner).mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(interpreter)
    # Makes `bin` a virtual environment of nothing: the host's site-packages are neither seen nor paid for.
    (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(interpreter)}\ninclude-system-site-packages = false\n")
    (folder / "runner.bash").write_bytes(RUNNER.read_bytes())
    folder.chmod(0o755)
    return folder


def interpreter() -> str:
    """The Python that runs us: the program itself, no shim and no virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def start_tree(image: Image) -> Path:
    """The folder on this machine that holds the image's tree; SandboxError without one."""
    if image.tree is None:
        raise SandboxError(f"{image.name}: its tree lies in a Docker image only")
    return image.tree


def copy_tree(source: Path, target: Path) -> None:
    """Copy with modes, times and links; shares blocks where the file system can."""
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", "-T", "--", str(source), str(target)], capture_output=True, check=False
    )
    if done.returncode:
        raise OSError(errno.EIO, done.stderr.decode("utf-8", "replace").strip(), str(source))


def environment_of(image: Image, *, path: str, home: str, more: Mapping[str, str] | None = None) -> bytes:
    """The exact environment of the image's actions."""
    ours = {} if image.own_environment else ENVIRONMENT
    return environment(ours, {"PATH": path, "HOME": home}, more or {}, image.env)
