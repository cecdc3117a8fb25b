"""The archive that a snapshot is. One format, whatever sandbox wrote it and whatever sandbox takes it up.

    first member    DELETED: the paths that are removed, with all below them, before anything is put in their place;
                    NUL-separated, sorted
    then            folders, files, symlinks, FIFOs and hard links; a folder comes before what it holds

It is a tar in pax format. A name is the absolute path inside without its leading slash, any bytes; owner is 0, times
are kept to the nanosecond. Not kept: sockets, extended attributes, access times, live processes. One state gives one
archive, to the byte.

What lies in a sandbox's folders was put there by whatever ran in it: nothing here follows a symlink. Standard library
only: `layers` runs this in a process of its own as well.
"""

import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from io import BytesIO
from pathlib import Path
from typing import IO

DELETED = b".forkroll-deleted"

_NS = 1_000_000_000
_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BadArchive(Exception):
    """Damaged, or not made by us; the message names the file."""


class NotCaptured(Exception):
    """This state cannot be written as an archive; the message says why."""


@dataclass(frozen=True)
class Entry:
    """Something to be archived. The folder is open only until the next entry is asked for."""

    path: bytes
    info: os.stat_result
    folder: int
    """Descriptor of the folder that holds it."""

    @property
    def name(self) -> bytes:
        """Within its folder."""
        return os.path.basename(self.path)


def write(into: Path, deleted: Iterable[bytes], entries: Iterable[Entry], *, limit: int | None) -> None:
    """Write the archive `into`, a path that is free; what goes wrong leaves nothing there.

    NotCaptured when files change under our hands or together hold more than `limit` bytes.
    """
    try:
        with tarfile.open(into, "x:", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape") as tar:
            _add_deleted(tar, deleted)
            _Writer(tar, limit).add_all(entries)
    except BaseException:
        into.unlink(missing_ok=True)
        raise


def _add_deleted(tar: tarfile.TarFile, deleted: Iterable[bytes]) -> None:
    content = b"".join(path + b"\0" for path in sorted(deleted))
    head = tarfile.TarInfo(DELETED.decode())
    head.size = len(content)
    tar.addfile(head, BytesIO(content))


class _File:
    """A file of which exactly the size that it was seen with is taken."""

    def __init__(self, entry: Entry) -> None:
        self._path = entry.path
        self._fd = os.open(entry.name, _OPEN_FILE, dir_fd=entry.folder)

    def read(self, size: int = 1 << 16, /) -> bytes:
        part = os.read(self._fd, size)
        if not part:
            raise NotCaptured(f"{os.fsdecode(self._path)} was cut while it was read")
        return part

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class _Writer:
    def __init__(self, tar: tarfile.TarFile, limit: int | None) -> None:
        self._tar = tar
        self._left = limit
        self._linked: dict[tuple[int, int], str] = {}
        """What has several names: the one under which it was archived."""

    def add_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        head, kind = _head(entry), stat.S_IFMT(entry.info.st_mode)
        if self._is_another_name(entry, head):
            head.type = tarfile.LNKTYPE
        elif kind == stat.S_IFREG:
            self._add_file(entry, head)
            return
        elif kind == stat.S_IFDIR:
            head.type = tarfile.DIRTYPE
        elif kind == stat.S_IFIFO:
            head.type = tarfile.FIFOTYPE
        elif kind == stat.S_IFLNK:
            head.type, head.linkname = tarfile.SYMTYPE, _text(os.readlink(entry.name, dir_fd=entry.folder))
        else:
            return  # a socket is nothing without its process
        self._tar.addfile(head)

    def _is_another_name(self, entry: Entry, head: tarfile.TarInfo) -> bool:
        """True, with the first name in `head`, when what is at `entry` has been archived under that."""
        info = entry.info
        if info.st_nlink < 2 or stat.S_ISDIR(info.st_mode) or stat.S_ISSOCK(info.st_mode):
            return False
        head.linkname = self._linked.setdefault((info.st_dev, info.st_ino), head.name)
        return head.linkname != head.name

    def _add_file(self, entry: Entry, head: tarfile.TarInfo) -> None:
        head.size = entry.info.st_size
        if self._left is not None:
            self._left -= head.size
            if self._left < 0:
                raise NotCaptured("more was written than the sandbox's limit on disk")
        with _File(entry) as content:
            self._tar.addfile(head, content)


def _head(entry: Entry) -> tarfile.TarInfo:
    head = tarfile.TarInfo(_text(entry.path))
    head.mode = stat.S_IMODE(entry.info.st_mode)
    nanoseconds = entry.info.st_mtime_ns
    head.mtime = nanoseconds // _NS
    if nanoseconds % _NS:
        sign, size = "-" if nanoseconds < 0 else "", abs(nanoseconds)
        head.pax_headers = {"mtime": f"{sign}{size // _NS}.{size % _NS:09d}"}
    return head


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Member:
    """One member of an archive, read back."""

    path: bytes
    kind: int
    """As stat.S_IFMT gives it; a hard link is a file with a `link`."""
    mode: int
    mtime_ns: int
    link: bytes
    """Target of a symlink; path of the file that a hard link is another name of; else empty."""
    content: IO[bytes] | None
    """Of a file."""


@dataclass(frozen=True)
class Contents:
    """An archive, open."""

    deleted: Sequence[bytes]
    members: Iterator[Member]
    """BadArchive is raised where it turns out damaged, at the end at the latest."""


@contextmanager
def read(archive: Path) -> Iterator[Contents]:
    """The contents of `archive`; BadArchive when it cannot be read or is not of our format."""
    try:
        with archive.open("rb") as file, _open_tar(file) as tar:
            head = tar.next()
            if head is None or _bytes(head.name) != DELETED or not head.isreg():
                raise BadArchive(f"{archive}: not a snapshot: its first member is not {DELETED.decode()}")
            content = tar.extractfile(head)
            assert content is not None
            deleted = [_checked(path) for path in content.read().split(b"\0") if path]
            yield Contents(deleted, _members(tar, head, file))
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BadArchive(f"{archive}: not a snapshot: {error}") from error
    except FileNotFoundError as error:
        if error.filename != str(archive):
            raise
        raise BadArchive(f"{archive}: there is no such snapshot") from error


def _open_tar(file: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape")


def _members(tar: tarfile.TarFile, head: tarfile.TarInfo, file: IO[bytes]) -> Iterator[Member]:
    last = head
    while (found := tar.next()) is not None:
        last = found
        yield _member(tar, found)
    # A damaged header looks like the end to tarfile; the end is two blocks of zeros and more of them.
    blocks = -(-last.size // tarfile.BLOCKSIZE) if last.isreg() else 0
    file.seek(last.offset_data + blocks * tarfile.BLOCKSIZE)
    rest = file.read(3 * tarfile.RECORDSIZE)
    if not 2 * tarfile.BLOCKSIZE <= len(rest) < 2 * tarfile.RECORDSIZE or rest.strip(b"\0"):
        raise ValueError("damaged, or cut off")


def _member(tar: tarfile.TarFile, found: tarfile.TarInfo) -> Member:
    path = _checked(_bytes(found.name))
    if found.type not in _TYPES:
        raise ValueError(f"a member of a kind that no snapshot has: {os.fsdecode(path)}")
    link = _bytes(found.linkname) if found.issym() or found.islnk() else b""
    return Member(
        path=path,
        kind=_kind(found),
        mode=stat.S_IMODE(found.mode),
        mtime_ns=_mtime_ns(found),
        link=_checked(link) if found.islnk() else link,
        content=tar.extractfile(found) if found.isreg() else None,
    )


def _kind(found: tarfile.TarInfo) -> int:
    if found.isdir():
        return stat.S_IFDIR
    if found.issym():
        return stat.S_IFLNK
    return stat.S_IFIFO if found.isfifo() else stat.S_IFREG


def _mtime_ns(found: tarfile.TarInfo) -> int:
    """tarfile reads times as floats, which lose nanoseconds."""
    try:
        return int(Decimal(found.pax_headers.get("mtime", found.mtime)) * _NS)
    except InvalidOperation:
        raise ValueError("a time that is no number") from None


def _checked(path: bytes) -> bytes:
    """`path` without a trailing slash; ValueError when it could lead out of the root."""
    path = path.rstrip(b"/")
    if not path or any(part in (b"", b".", b"..") for part in path.split(b"/")):
        raise ValueError(f"a path that no snapshot has: {os.fsdecode(path)!r}")
    return path


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
