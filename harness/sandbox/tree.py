"""A digest of the state of a working tree: every file, symlink and folder, and git's HEAD.

    entry  = SHA-256 over path, kind, permission bits and what the entry holds (content or target)
    digest = SHA-256 over the sum of all entries modulo 2**256, and the commit that HEAD names

A sum can be corrected entry by entry. So `OverlayTree` starts from the image's entries, hashed once, and walks
only the upper layer, while `ScannedTree` looks at the whole tree and reads again only what has changed. Both say
the same of the same state. Neither runs git, follows a symlink or opens anything but a regular file: the tree
belongs to whatever ran in the sandbox.

Left out are `EXCLUDED_NAMES` and `EXCLUDED_SUFFIX`, at any depth; times, owners and git's index never count.
"""

import bisect
import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

EXCLUDED_NAMES = frozenset({b".git", b"__pycache__", b".pytest_cache"})
EXCLUDED_SUFFIX = b".pyc"

_MODULUS = 1 << 256
RACY_NS = 50_000_000
"""A file that changed this shortly before the look may change again within one tick of the clock of its
time stamps: its hash is not remembered."""
_COMMIT = re.compile(rb"[0-9a-f]{40}([0-9a-f]{24})?")
_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")
"""What marks a folder that hides the one below: in a mount of our own, and in one of an engine that is root."""


class Unreadable(OSError):
    """Something in the tree cannot be read by the driver: no digest can be said."""


_NO_DIGEST = (OSError, RecursionError)
"""What a tree may do to us: closed to us, too deep, a path too long."""


@dataclass(frozen=True)
class _Mark:
    """What tells that a file is still the one that was hashed."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int

    @staticmethod
    def of(info: os.stat_result) -> "_Mark":
        return _Mark(info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_mode)


class _Hashes:
    """Entry hashes, remembered by path for as long as the file is the same."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[_Mark, int]] = {}

    def entry(self, path: bytes, place: bytes, info: os.stat_result) -> int:
        """Hash of the entry at `place` on this machine, which is `path` within the tree."""
        if not stat.S_ISREG(info.st_mode):
            return entry_hash(path, info.st_mode, _held_by_other(place, info))
        mark, known = _Mark.of(info), self._known.get(path)
        if known is not None and known[0] == mark:
            return known[1]
        value = entry_hash(path, info.st_mode, _file_digest(place))
        if time.time_ns() - max(mark.mtime_ns, mark.ctime_ns) > RACY_NS:
            self._known[path] = (mark, value)
        else:
            self._known.pop(path, None)
        return value


def entry_hash(path: bytes, mode: int, held: bytes) -> int:
    """Of one entry; `held` is a file's SHA-256, a link's target, else nothing."""
    head = b"%d:%s%o:%o:" % (len(path), path, stat.S_IFMT(mode), 0 if stat.S_ISLNK(mode) else mode & 0o777)
    return int.from_bytes(hashlib.sha256(head + held).digest(), "big")


def _held_by_other(place: bytes, info: os.stat_result) -> bytes:
    return os.readlink(place) if stat.S_ISLNK(info.st_mode) else b""


def _file_digest(place: bytes) -> bytes:
    file = _open_regular(place)
    if file is None:
        raise Unreadable(os.fsdecode(place))
    with file:
        return hashlib.file_digest(file, "sha256").digest()


def _read_regular(place: bytes) -> bytes | None:
    file = _open_regular(place)
    if file is None:
        return None
    with file:
        return file.read()


def _open_regular(place: bytes) -> BufferedReader | None:
    """A regular file, open; None where there is none (any more) or it may not be read."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return open(fd, "rb")


def _excluded(name: bytes) -> bool:
    return name in EXCLUDED_NAMES or name.endswith(EXCLUDED_SUFFIX)


def _children(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not _excluded(entry.name)]
    except PermissionError as error:
        raise Unreadable(os.fsdecode(folder)) from error
    except (FileNotFoundError, NotADirectoryError):
        return []


def _walk(root: bytes, path: bytes = b"") -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    """(path within the tree, place on this machine, lstat) of each entry below `root`; parents first."""
    for child in _children(root):
        inner = path + b"/" + child.name if path else child.name
        try:
            info = child.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # a process of the sandbox removed it since
        yield inner, child.path, info
        if stat.S_ISDIR(info.st_mode):
            yield from _walk(child.path, inner)


def digest_of(total: int, head: bytes) -> str:
    """The digest of a tree whose entries' hashes sum to `total`; `head` as `head_named` says."""
    return hashlib.sha256((total % _MODULUS).to_bytes(32, "big") + head).hexdigest()


class ScannedTree:
    """Digest of a plain folder."""

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root)
        self._hashes = _Hashes()

    def digest(self) -> str | None:
        """None when something in the tree cannot be read."""
        try:
            total = sum(self._hashes.entry(*found) for found in _walk(self._root))
        except _NO_DIGEST:
            return None
        return digest_of(total, head_named(lambda path: _read_plain(self._root, path)))


class ImageEntries:
    """The entries of an image's tree, hashed once and shared by its sandboxes. The tree never changes."""

    def __init__(self, root: Path, *, head: Path | None = None) -> None:
        """`head`: a folder that holds a copy of what names HEAD, where `root` will not last."""
        self.root = os.fsencode(head or root)
        hashes = _Hashes()
        self._entries = {path: hashes.entry(path, place, info) for path, place, info in _walk(os.fsencode(root))}
        self._paths = sorted(self._entries)
        self.total = sum(self._entries.values())

    def get(self, path: bytes) -> int | None:
        return self._entries.get(path)

    def below(self, path: bytes) -> int:
        """Sum of the entries below the folder `path`; b"" is the root."""
        if not path:
            return self.total
        # b"0" follows b"/": all that begins with `path` and a slash, and nothing else
        first = bisect.bisect_left(self._paths, path + b"/")
        last = bisect.bisect_left(self._paths, path + b"0")
        return sum(self._entries[inner] for inner in self._paths[first:last])


class OverlayTree:
    """Digest of an overlay mount (without redirect_dir and metacopy), read from its layers outside the sandbox."""

    def __init__(self, image: ImageEntries, upper: Path) -> None:
        self._image = image
        self._upper = os.fsencode(upper)
        self._hashes = _Hashes()

    def digest(self) -> str | None:
        """None when something in the upper layer cannot be read."""
        try:
            total = self._image.total + self._folder(self._upper, b"", lower=True)
        except _NO_DIGEST:
            return None
        return digest_of(total, head_named(self._read))

    def _folder(self, place: bytes, path: bytes, *, lower: bool) -> int:
        """What the upper folder at `place` adds to the image's sum; `lower`: the image shows through to here."""
        try:
            info = os.lstat(place)
        except FileNotFoundError:
            return 0
        if not stat.S_ISDIR(info.st_mode):
            return -self._image.below(path) if lower else 0
        change = 0
        if lower and is_opaque(place):
            lower = False
            change -= self._image.below(path)
        for child in _children(place):
            inner = path + b"/" + child.name if path else child.name
            change += self._child(inner, child, lower=lower)
        return change

    def _child(self, path: bytes, child: os.DirEntry[bytes], *, lower: bool) -> int:
        try:
            info = child.stat(follow_symlinks=False)
        except FileNotFoundError:
            return 0
        change = -(self._image.get(path) or 0) if lower else 0
        if not is_whiteout(info):
            change += self._hashes.entry(path, child.path, info)
        if stat.S_ISDIR(info.st_mode):
            return change + self._folder(child.path, path, lower=lower)
        return change - (self._image.below(path) if lower else 0)

    def _read(self, path: bytes) -> bytes | None:
        """A regular file of the mounted tree, found in the upper layer or the image."""
        place, lower = self._upper, True
        for part in [b"", *path.split(b"/")]:
            place = place + b"/" + part if part else place
            try:
                info = os.lstat(place)
            except FileNotFoundError:
                return _read_plain(self._image.root, path) if lower else None
            except OSError:
                return None
            if not stat.S_ISDIR(info.st_mode):
                break
            lower = lower and not is_opaque(place)
        # A file on the way is no folder, whatever it is called.
        return _read_regular(place) if place == self._upper + b"/" + path else None


def is_whiteout(info: os.stat_result) -> bool:
    """The mark of a deletion in an upper layer."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(place: bytes) -> bool:
    """The folder hides what lower layers have at its path."""
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(place, name, follow_symlinks=False) == b"y":
                return True
    return False


def _read_plain(root: bytes, path: bytes) -> bytes | None:
    """A regular file below `root`, reached through no symlink."""
    place = root
    for part in path.split(b"/")[:-1]:
        place += b"/" + part
        try:
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                return None
        except OSError:
            return None
    return _read_regular(root + b"/" + path)


def head_named(read: Callable[[bytes], bytes | None]) -> bytes:
    """The commit that .git/HEAD names; what it holds where that is no commit; b"" without one."""
    name = read(b".git/HEAD")
    for _ in range(5):  # git's own limit on symbolic references
        if name is None:
            return b""
        name = name.strip()
        if not name.startswith(b"ref:"):
            return name if _COMMIT.fullmatch(name) else b"not a commit:" + name
        ref = name[4:].strip()
        if not ref.startswith(b"refs/") or b".." in ref or b"\0" in ref:
            return b"not a reference:" + ref
        name = read(b".git/" + ref) or _packed(read(b".git/packed-refs"), ref)
    return b""


def _packed(content: bytes | None, ref: bytes) -> bytes | None:
    for line in (content or b"").splitlines():
        commit, _, name = line.partition(b" ")
        if name == ref:
            return commit
    return None


def head_commit(tree: Path) -> str | None:
    """The commit that the HEAD of a plain folder's .git names; None where it names none."""
    return commit_of(head_named(lambda path: _read_plain(os.fsencode(tree), path)))


def commit_of(head: bytes) -> str | None:
    """The commit in what `head_named` gave; None when it is none."""
    return head.decode() if _COMMIT.fullmatch(head) else None
