"""What a container holds beyond its image: taken as an archive, and put back. See `archive` for the format.

`InLayers` reads the engine's own folders, where the driver may; `FromInside` asks the engine what has changed and has
`tar` inside pack it. What lies on a tmpfs or a volume is in no layer: a state with files of its own in /dev, say, or of
an image with volumes, is not captured.
"""

import contextlib
import os
import secrets
import shlex
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from harness.errors import SandboxError
from harness.sandbox import archive
from harness.sandbox.archive import BadArchive, Entry, NotCaptured
from harness.sandbox.container import INSIDE, Container
from harness.sandbox.engine import Engine
from harness.sandbox.images import ROOT, User
from harness.sandbox.layers import OverlayLayer, capture, walk
from harness.sandbox.tree import is_opaque, is_whiteout

_COVERED = (b"dev", b"proc", b"sys", INSIDE.strip("/").encode(), b"etc/hosts", b"etc/hostname", b"etc/resolv.conf")
"""Something is mounted there in every container: what a snapshot holds there would not be seen."""
_FORMAT = {"format": tarfile.PAX_FORMAT, "encoding": "utf-8", "errors": "surrogateescape"}
_NO_TEXT = "\ufffd".encode()
_TMPFS = ("dev", "dev/shm", "sys/fs/cgroup")
"""Mounts in every container that an action can write to."""
_NAMES_ON_TMPFS = r"cd / && printf '%s\0' {places}"
_PACK = r"""
cd / || exit 3
mapfile -d '' named < {listed}
for path in "${{named[@]}}"; do
  if [[ -e $path || -L $path ]]; then printf '%s\0' "$path"; fi
done | tar --create --format=pax --no-recursion --null --verbatim-files-from --files-from=- 2>/dev/null
"""
_REMOVE = r"""
cd / || exit 3
mapfile -d '' named < {listed}
for ((i = 0; i < ${{#named[@]}}; i += 500)); do rm -rf -- "${{named[@]:i:500}}" || exit 4; done
"""
_UNPACK = r"""
LC_ALL=C.UTF-8 tar --extract --file={archive} --directory=/ --preserve-permissions --no-same-owner \
  --exclude={deleted} --warning=no-unknown-keyword || exit 5
"""


@dataclass(frozen=True)
class Start:
    """A fresh container of an image, to compare with."""

    paths: Set[bytes]
    """What the engine makes in the writable layer by itself."""
    on_tmpfs: bytes
    """Names of what lies in no layer."""


def look_at_start(container: Container, engine: Engine) -> Start:
    """Of a container in which nothing has run yet."""
    if container.layers:
        with _opened(container.layers[0]) as top:
            paths = {entry.path for entry in walk(top)}
    else:
        paths = {os.fsencode(change.path.lstrip("/")) for change in engine.changes(container.id)}
    return Start(frozenset(paths), _names_on_tmpfs(container))


class InLayers:
    """Snapshots of one container, read from its layers."""

    def __init__(self, container: Container, start: Start, limit: int | None) -> None:
        self._container, self._start, self._limit = container, start, limit
        self._layer = _ContainerLayer(container.layers, start.paths)

    def mark(self) -> str | None:
        """Names the present state; None when it cannot be captured."""
        if not _in_layers(self._container, self._start):
            return None
        with contextlib.suppress(OSError, NotCaptured):
            return self._layer.mark()
        return None

    def write(self, into: Path) -> bool:
        """False when this state cannot be captured."""
        if not _in_layers(self._container, self._start):
            return False
        try:
            capture(self._layer, into, limit=self._limit)
        except (OSError, NotCaptured):
            return False
        return True


class FromInside:
    """Snapshots of one container whose layers the driver may not read."""

    def __init__(self, container: Container, start: Start, engine: Engine, limit: int | None) -> None:
        self._container, self._start, self._engine, self._limit = container, start, engine, limit

    def mark(self) -> str | None:
        """None: to tell that nothing has changed takes as long as a snapshot."""
        return None

    def write(self, into: Path) -> bool:
        """False when this state cannot be captured, or there is no `tar` inside."""
        if not _in_layers(self._container, self._start):
            return False
        found = {os.fsencode(one.path.lstrip("/")): one.deleted for one in self._engine.changes(self._container.id)}
        if any(_NO_TEXT in path for path in found):  # the engine's answer is text: the name is lost
            return False
        changed = {path: deleted for path, deleted in found.items() if path not in self._start.paths}
        with _handed_over(self._container, sorted(changed)) as listed:
            ran = self._container.shell.own(_PACK.format(listed=listed))
        if ran.status or ran.signal or (self._limit is not None and ran.size > self._limit):
            return False
        try:
            _rewrite(BytesIO(ran.output), into, _topmost(sorted(path for path in changed if changed[path])))
        except (tarfile.TarError, ValueError, OSError):
            into.unlink(missing_ok=True)
            return False
        return True


def restore(snapshot: Path, container: Container, engine: Engine, owner: User) -> None:
    """Bring a fresh container to the state in `snapshot`; BadArchive, naming it, when it is damaged or foreign."""
    deleted = _checked(snapshot)
    with _handed_over(container, deleted) as listed:
        removed = container.shell.own(_REMOVE.format(listed=listed) if deleted else "true")
    if removed.status or removed.signal:
        raise SandboxError(f"{snapshot}: what it lists as deleted could not be removed: {removed.output[-300:]!r}")
    if not _unpacked_inside(snapshot, container):
        with _members_only(snapshot, owner) as members:
            engine.unpack(container.id, members)


def _unpacked_inside(snapshot: Path, container: Container) -> bool:
    """By `tar` inside, which takes a tenth of the time that an engine takes; False when that cannot do it."""
    place = container.steps / f"{secrets.token_hex(8)}.tar"
    shutil.copyfile(snapshot, place)
    place.chmod(0o644)
    try:
        inside = f"{INSIDE}/steps/{place.name}"
        ran = container.shell.own(_UNPACK.format(archive=inside, deleted=archive.DELETED.decode()))
    finally:
        place.unlink()
    return not (ran.status or ran.signal)


def _checked(snapshot: Path) -> Sequence[bytes]:
    """Read it to its end, before anything is changed; the deleted paths."""
    with archive.read(snapshot) as contents:
        for path in contents.deleted:
            if any(path == place or place.startswith(path + b"/") for place in _COVERED):
                raise BadArchive(f"{snapshot}: it deletes /{os.fsdecode(path)}, which every container has")
        for member in contents.members:
            covered = any(member.path == place or member.path.startswith(place + b"/") for place in _COVERED)
            if covered and member.kind != stat.S_IFDIR:
                raise BadArchive(f"{snapshot}: it holds /{os.fsdecode(member.path)}, which a container mounts over")
        return contents.deleted


@contextlib.contextmanager
def _members_only(snapshot: Path, owner: User) -> Iterator[IO[bytes]]:
    """The archive as the engine takes it: without the list of deletions, and owned by whom actions run as."""
    with snapshot.open("rb") as file, tempfile.TemporaryFile() as rewritten:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            tar.next()
            if owner == ROOT:
                file.seek(tar.offset)
                yield file
                return
            with tarfile.open(fileobj=rewritten, mode="w", **_FORMAT) as target:  # type: ignore[call-overload]
                while (member := tar.next()) is not None:
                    member.uid, member.gid = owner.uid, owner.gid
                    target.addfile(member, tar.extractfile(member) if member.isreg() else None)
        rewritten.seek(0)
        yield rewritten


def _rewrite(packed: IO[bytes], into: Path, deleted: Sequence[bytes]) -> None:
    """The tar `packed`, which may hold anything, as an archive of ours."""
    names = b"".join(path + b"\0" for path in deleted)
    head = tarfile.TarInfo(archive.DELETED.decode())
    head.size = len(names)
    with (
        tarfile.open(fileobj=packed, mode="r:", encoding="utf-8", errors="surrogateescape") as tar,
        tarfile.open(into, "x:", **_FORMAT) as target,  # type: ignore[call-overload]
    ):
        target.addfile(head, BytesIO(names))
        for member in tar:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {key: value for key, value in member.pax_headers.items() if key == "mtime"}
            target.addfile(member, tar.extractfile(member) if member.isreg() else None)


class _ContainerLayer(OverlayLayer):
    """The writable layer of a container, on all the layers of its image."""

    def __init__(self, layers: Sequence[Path], ignored: Set[bytes]) -> None:
        super().__init__(layers[0], layers[-1])
        self._lowers = [os.fsencode(layer) for layer in layers[1:]]
        self._ignored = ignored

    def _walk(self, top: int) -> Iterator[Entry]:
        return (entry for entry in walk(top) if entry.path not in self._ignored)

    def _kind_below(self, path: bytes) -> int | None:
        for layer in self._lowers:
            found = _look_in(layer, path)
            if found.kind is not None or found.hides_lower:
                return found.kind
        return None


@dataclass(frozen=True)
class _Look:
    """What one layer says of a path."""

    kind: int | None
    hides_lower: bool
    """Layers below have no say."""


def _look_in(layer: bytes, path: bytes) -> _Look:
    place, opaque = layer, False
    for part in path.split(b"/"):
        place += b"/" + part
        try:
            info = os.lstat(place)
        except FileNotFoundError:
            return _Look(None, opaque)
        except NotADirectoryError:
            return _Look(None, True)
        if is_whiteout(info):
            return _Look(None, True)
        opaque = opaque or (stat.S_ISDIR(info.st_mode) and is_opaque(place))
    return _Look(stat.S_IFMT(info.st_mode), True)


def _topmost(paths: Sequence[bytes]) -> list[bytes]:
    """Those that lie below no other."""
    kept: list[bytes] = []
    for path in sorted(paths, key=lambda path: path.split(b"/")):
        if not kept or not path.startswith(kept[-1] + b"/"):
            kept.append(path)
    return kept


def _in_layers(container: Container, start: Start) -> bool:
    """Nothing was put onto a tmpfs."""
    return _names_on_tmpfs(container) == start.on_tmpfs


def _names_on_tmpfs(container: Container) -> bytes:
    if container.pid is not None and os.geteuid() == 0:
        # Mounts, all of them, which nothing inside can move or replace by a link.
        places = [f"/proc/{container.pid}/root/{place}" for place in _TMPFS]
        return b"\0".join(os.fsencode(name) for place in places for name in sorted(_listed(place)))
    places = [f"{place}/{names}" for place in _TMPFS for names in ("*", ".[!.]*")]
    return container.shell.own(_NAMES_ON_TMPFS.format(places=" ".join(places))).output


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def _handed_over(container: Container, paths: Sequence[bytes]) -> Iterator[str]:
    """A list of paths in a file that the container sees; quoted name of it inside."""
    name = f"{secrets.token_hex(8)}.list"
    place = container.steps / name
    place.write_bytes(b"".join(path + b"\0" for path in paths))
    place.chmod(0o644)
    try:
        yield shlex.quote(f"{INSIDE}/steps/{name}")
    finally:
        place.unlink()


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
