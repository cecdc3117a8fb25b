"""What a namespace sandbox's root holds beyond its image, told and put back from outside.

- `OverlayLayer`: the upper layer of an overlay (userxattr). A whiteout is a deletion; so is an opaque folder, and one
  that stands where the image has something else, or the reverse.
- `CopiedLayer`: a private copy. What differs is what is no longer the very inode that was copied.

Everything in these folders belongs to whatever ran in the sandbox and may change at any time: every step goes from an
open folder to a name in it, and none follows a symlink. Standard library only; see `archive`.
"""

import hashlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from harness.sandbox import archive
from harness.sandbox.archive import BadArchive, Entry, Member, NotCaptured

_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")
"""What marks a folder that hides the one below: in a mount of our own, and in one of an engine that is root."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 128
"""Folders within folders; each holds a descriptor while it is walked. Deeper trees are not captured."""
_CLOCK_REALTIME_COARSE = 5
"""The clock of file time stamps; it moves every few milliseconds."""
_TICK_S = 0.02


class Layer(Protocol):
    """The changed part of a sandbox's root."""

    def mark(self) -> str:
        """Names its present state."""
        ...

    def deleted(self) -> list[bytes]:
        """Paths of the image that are gone or were replaced by something of another kind."""
        ...

    def entries(self) -> Iterator[Entry]:
        """What is new or changed, folders before what they hold, in order of name."""
        ...


def capture(layer: Layer, into: Path, *, limit: int | None) -> None:
    """Write what `layer` holds as an archive; NotCaptured when this state cannot be, OSError when we may not."""
    archive.write(into, layer.deleted(), layer.entries(), limit=limit)


def walk(folder: int, path: bytes = b"", depth: int = 0) -> Iterator[Entry]:
    """All below the open `folder`, which lies at `path`: in order of name, folders before what they hold."""
    if depth > _MAX_DEPTH:
        raise NotCaptured(f"folders more than {_MAX_DEPTH} deep")
    with os.scandir(folder) as found:
        names = sorted(os.fsencode(entry.name) for entry in found)
    for name in names:
        try:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue  # a process of the sandbox removed it since
        inner = path + b"/" + name if path else name
        yield Entry(inner, info, folder)
        if stat.S_ISDIR(info.st_mode):
            with _opened(name, folder) as child:
                yield from walk(child, inner, depth + 1)


@contextmanager
def _opened(name: bytes, folder: int | None = None) -> Iterator[int]:
    try:
        fd = os.open(name, _OPEN_FOLDER, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotCaptured(f"{os.fsdecode(name)} changed while it was read") from error
    try:
        yield fd
    finally:
        os.close(fd)


class Stamp(NamedTuple):
    """What no change of an entry leaves as it was: the clock of `changed_ns` is the kernel's."""

    inode: int
    mode: int
    size: int
    modified_ns: int
    changed_ns: int

    @staticmethod
    def of(info: os.stat_result) -> "Stamp":
        return Stamp(info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _mark_of(entries: Iterable[Entry]) -> str:
    total, newest = hashlib.sha256(), 0
    for entry in entries:
        total.update(b"%d:%s" % (len(entry.path), entry.path))
        total.update(b"%d %d %d %d %d;" % Stamp.of(entry.info))
        newest = max(newest, entry.info.st_ctime_ns)
    _wait_past(newest)
    return total.hexdigest()


def _wait_past(stamp_ns: int) -> None:
    """Until whatever changes from now on gets another time stamp."""
    deadline = time.monotonic() + _TICK_S
    while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) <= stamp_ns:
        if time.monotonic() > deadline:
            raise NotCaptured("a file's time stamp lies in the future")
        time.sleep(0.0005)


def main(upper: str, lower: str, into: str, limit: str) -> None:
    """Capture in a process of its own: for a driver that must be root of the sandbox's user namespace to read all."""
    try:
        capture(OverlayLayer(Path(upper), Path(lower)), Path(into), limit=int(limit) if limit else None)
    except NotCaptured as error:
        sys.exit(str(error))


class OverlayLayer:
    """An upper layer on its image."""

    def __init__(self, upper: Path, lower: Path) -> None:
        self.upper, self.lower = upper, lower
        self._upper, self._lower = os.fsencode(upper), os.fsencode(lower)

    def mark(self) -> str:
        """Names its present state."""
        with _opened(self._upper) as top:
            return _mark_of(self._walk(top))

    def deleted(self) -> list[bytes]:
        """Paths of the image that are gone or were replaced by something of another kind."""
        with _opened(self._upper) as top:
            return _topmost(entry.path for entry in self._walk(top) if self._hides(entry))

    def entries(self) -> Iterator[Entry]:
        """What the upper layer holds, whiteouts apart."""
        with _opened(self._upper) as top:
            for entry in self._walk(top):
                if not _is_whiteout(entry.info):
                    yield entry

    def _hides(self, entry: Entry) -> bool:
        """Nothing of what the image has at this path shows through, and it is not just another version of it."""
        below = self._kind_below(entry.path)
        if below is None:
            return False
        if stat.S_ISDIR(entry.info.st_mode):
            return below != stat.S_IFDIR or _is_opaque(entry)
        return below == stat.S_IFDIR or _is_whiteout(entry.info)

    def _kind_below(self, path: bytes) -> int | None:
        """Kind of what the image has at `path`; None when it has nothing there."""
        return _kind_at(self._lower, path)

    def _walk(self, top: int) -> Iterator[Entry]:
        """Whatever in the open upper layer counts."""
        return walk(top)


def _topmost(paths: Iterable[bytes]) -> list[bytes]:
    """Those that lie below no other; `paths` come in the order of `walk`."""
    kept: list[bytes] = []
    for path in paths:
        if not kept or not path.startswith(kept[-1] + b"/"):
            kept.append(path)
    return kept


def _kind_at(root: bytes, path: bytes) -> int | None:
    """Kind of the image's entry; None without one. Images are ours: they hold what they held."""
    try:
        return stat.S_IFMT(os.lstat(root + b"/" + path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _is_opaque(entry: Entry) -> bool:
    with _opened(entry.name, entry.folder) as folder:
        return any(_attribute(folder, name) == b"y" for name in _OPAQUE)


def _attribute(folder: int, name: str) -> bytes | None:
    try:
        return os.getxattr(folder, name)
    except OSError:
        return None


class CopiedLayer:
    """A private copy of an image. Made before anything runs in the copy, and before a snapshot is put into it."""

    def __init__(self, copy: Path) -> None:
        self._copy = os.fsencode(copy)
        with _opened(self._copy) as top:
            self._start: Mapping[bytes, Stamp] = {entry.path: Stamp.of(entry.info) for entry in walk(top)}
        _wait_past(max(stamp.changed_ns for stamp in self._start.values()))

    def mark(self) -> str:
        """Names its present state."""
        with _opened(self._copy) as top:
            return _mark_of(walk(top))

    def deleted(self) -> list[bytes]:
        """Paths of the image that are gone or were replaced by something of another kind."""
        with _opened(self._copy) as top:
            now = {entry.path: stat.S_ISDIR(entry.info.st_mode) for entry in walk(top)}
        return _topmost(path for path, stamp in self._start.items() if now.get(path) is not stat.S_ISDIR(stamp.mode))

    def entries(self) -> Iterator[Entry]:
        """What is not the inode that was copied, or was changed since."""
        with _opened(self._copy) as top:
            for entry in walk(top):
                if Stamp.of(entry.info) != self._start.get(entry.path):
                    yield entry


@dataclass(frozen=True)
class Place:
    """Where a snapshot is put back. Nothing runs there yet."""

    root: Path
    """The upper layer, empty so far; or the copy."""
    lower: Path | None
    """The image below an upper layer; None: `root` is a copy of it."""
    owner: int | None
    """User id that everything is given to; None: ours."""
    sealed: Sequence[bytes]
    """Paths that something else will cover: a snapshot that holds something there is foreign."""


def restore(snapshot: Path, place: Place) -> None:
    """Bring `place` to the state in `snapshot`; BadArchive, naming it, when it is damaged or foreign."""
    with archive.read(snapshot) as contents, ExitStack() as stack:
        target = _Target(place, stack)
        try:
            for path in contents.deleted:
                _refuse_sealed(path, place.sealed, folder=False)
                target.delete(path)
            for member in contents.members:
                is_folder = member.kind == stat.S_IFDIR
                if not _refuse_sealed(member.path, place.sealed, folder=is_folder):
                    target.put(member)
            target.finish()
        except BadArchive as error:
            raise BadArchive(f"{snapshot}: {error}") from error
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise BadArchive(f"{snapshot}: its members contradict one another: {error}") from error


def _refuse_sealed(path: bytes, sealed: Sequence[bytes], *, folder: bool) -> bool:
    """True for a folder at or below a sealed path, which may be passed over; BadArchive for anything else there."""
    inside = any(path == place or path.startswith(place + b"/") for place in sealed)
    above = not folder and any(place.startswith(path + b"/") for place in sealed)
    if above or (inside and not folder):
        raise BadArchive(f"it holds a change of /{os.fsdecode(path)}, which cannot change in this sandbox")
    return inside


class _Target:
    """Puts things into a `Place`. Folders are closed to nobody until `finish` gives them their modes and times."""

    def __init__(self, place: Place, stack: ExitStack) -> None:
        self._lower = None if place.lower is None else os.fsencode(place.lower)
        self._owner = place.owner
        self._folders: dict[bytes, tuple[int, int]] = {}
        """Path to mode and time, of the folders that are given them at the end."""
        self._trail: list[tuple[bytes, int]] = [(b"", os.open(place.root, _OPEN_FOLDER))]
        """Path and descriptor of the folder that is worked in and of those above."""
        stack.callback(self._close)

    def _close(self) -> None:
        for _, fd in self._trail:
            os.close(fd)

    def delete(self, path: bytes) -> None:
        """Remove what the image has at `path`, if anything."""
        parent, name = self._parent_of(path), os.path.basename(path)
        if self._lower is not None:
            if _kind_at(self._lower, path) is not None:
                os.mknod(name, stat.S_IFCHR, 0, dir_fd=parent)  # a whiteout, which needs no privilege
        elif (kind := _kind_in(parent, name)) == stat.S_IFDIR:
            shutil.rmtree(name, dir_fd=parent)
        elif kind is not None:
            os.unlink(name, dir_fd=parent)

    def put(self, member: Member) -> None:
        """Make what `member` says, in place of what is there."""
        if member.kind == stat.S_IFDIR:
            self._enter(member.path)
            self._folders[member.path] = (member.mode, member.mtime_ns)
            return
        parent, name = self._parent_of(member.path), os.path.basename(member.path)
        if _kind_in(parent, name) is not None:
            os.unlink(name, dir_fd=parent)
        if member.kind == stat.S_IFREG and member.link:
            self._link(member, parent, name)
            return
        if member.kind == stat.S_IFLNK:
            os.symlink(member.link, name, dir_fd=parent)
        elif member.kind == stat.S_IFIFO:
            os.mkfifo(name, 0o600, dir_fd=parent)
        else:
            _write_file(member, parent, name)
        self._dress(name, parent, None if member.kind == stat.S_IFLNK else member.mode, member.mtime_ns)

    def finish(self) -> None:
        """Give the folders their modes and times, inner ones first."""
        for path in sorted(self._folders, reverse=True):
            mode, mtime_ns = self._folders[path]
            self._dress(os.path.basename(path), self._parent_of(path), mode, mtime_ns)

    def _dress(self, name: bytes, parent: int, mode: int | None, mtime_ns: int) -> None:
        if self._owner is not None:
            os.chown(name, self._owner, self._owner, dir_fd=parent, follow_symlinks=False)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)
        if mode is not None:  # after the owner, whose change takes set-user-id bits away
            os.chmod(name, mode, dir_fd=parent)

    def _link(self, member: Member, parent: int, name: bytes) -> None:
        here = os.dup(parent)  # the other name may lie elsewhere, and going there closes what is open
        try:
            first, there = os.path.basename(member.link), self._parent_of(member.link)
            os.link(first, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        except FileNotFoundError as error:
            raise BadArchive(f"{os.fsdecode(member.path)} links to what it does not hold") from error
        finally:
            os.close(here)

    def _parent_of(self, path: bytes) -> int:
        return self._enter(os.path.dirname(path))

    def _enter(self, path: bytes) -> int:
        """The folder at `path`, open; made where it is missing, as the image has it if it does."""
        while not (self._trail[-1][0] == path or _is_above(self._trail[-1][0], path)):
            os.close(self._trail.pop()[1])
        while (at := self._trail[-1])[0] != path:
            done = len(at[0]) + 1 if at[0] else 0
            name = path[done:].split(b"/", 1)[0]
            inner = at[0] + b"/" + name if at[0] else name
            self._trail.append((inner, self._open(inner, name, at[1])))
        return self._trail[-1][1]

    def _open(self, path: bytes, name: bytes, parent: int) -> int:
        kind = _kind_in(parent, name)
        if kind == stat.S_IFDIR:
            if path not in self._folders and self._lower is None:
                self._folders[path] = _mode_and_time(os.stat(name, dir_fd=parent, follow_symlinks=False))
                os.chmod(name, 0o700, dir_fd=parent)
            return os.open(name, _OPEN_FOLDER, dir_fd=parent)
        was_deleted = kind == stat.S_IFCHR and self._lower is not None
        if was_deleted:
            os.unlink(name, dir_fd=parent)
        elif kind is not None:
            raise BadArchive(f"{os.fsdecode(path)} is a folder and something else as well")
        os.mkdir(name, 0o700, dir_fd=parent)
        fd = os.open(name, _OPEN_FOLDER, dir_fd=parent)
        if was_deleted:
            os.setxattr(fd, _OPAQUE[0], b"y")
        self._folders[path] = self._as_in_the_image(path, replaced=was_deleted)
        return fd

    def _as_in_the_image(self, path: bytes, *, replaced: bool) -> tuple[int, int]:
        if self._lower is not None and not replaced and _kind_at(self._lower, path) == stat.S_IFDIR:
            return _mode_and_time(os.lstat(self._lower + b"/" + path))
        return 0o755, time.time_ns()


def _is_above(folder: bytes, path: bytes) -> bool:
    return not folder or path.startswith(folder + b"/")


def _mode_and_time(info: os.stat_result) -> tuple[int, int]:
    return stat.S_IMODE(info.st_mode), info.st_mtime_ns


def _kind_in(folder: int, name: bytes) -> int | None:
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _write_file(member: Member, folder: int, name: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    assert member.content is not None
    with open(os.open(name, flags, 0o600, dir_fd=folder), "wb", buffering=0) as file:
        shutil.copyfileobj(member.content, file, 1 << 20)
