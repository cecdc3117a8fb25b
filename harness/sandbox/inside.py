"""The state digest taken from inside: for a sandbox whose files the driver cannot see.

One pass of GNU `find`, or `ls` where there is none, lists the tree; the contents of what has changed since the last are
hashed in a second. Needs bash and GNU coreutils inside, and gives the digest that `tree` gives from outside.
"""

import re
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from harness.sandbox.shell import Ran
from harness.sandbox.tree import EXCLUDED_NAMES, EXCLUDED_SUFFIX, RACY_NS, digest_of, entry_hash, head_named

_LIST = r"""
export LC_ALL=C
cd -- {cwd} || exit 3
tell() {{  # file below a plain .git
  [[ -f $1 && ! -L $1 ]] || return
  IFS= read -r -d '' held <"$1"
  printf '%s\0%s\0' "$1" "$held"
}}
if [[ -d .git && ! -L .git ]] && tell .git/HEAD && [[ $held == 'ref: refs/heads/'* ]]; then
  place=.git/${{held#ref: }} place=${{place%%$'\n'*}}
  if [[ $place != */*/*/*/* && ! -L .git/refs && ! -L .git/refs/heads ]]; then tell "$place"; fi
fi
printf '\0'
{lister} || exit 4
exit 0
"""
_READ = r"""
cd -- {cwd} || exit 3
place=. path={path}
while [[ $path == */* ]]; do
  place+=/${{path%%/*}} path=${{path#*/}}
  [[ -d $place && ! -L $place ]] || exit 4
done
[[ -f $place/$path && ! -L $place/$path ]] || exit 4
cat -- "$place/$path"
"""
_CAN_FIND = r"find / -maxdepth 0 -printf '%C@%l' >/dev/null 2>&1"
_FIND = r"find . \( {names} \) -prune -o -printf '%y %m %i %s %C@ %p\0%l\0'"
_LS = r"ls -ARUgoi --time=ctime --time-style=+%s.%N --quoting-style=c --color=never {names} ."
_QUOTED = rb'"((?:[^"\\]|\\.)*)"'
_LISTED = re.compile(
    rb"^ *(\d+) ([-a-z])([-rwxsStT]{9})\S? +\d+ +([0-9, ]+) (\d+\.\d+) " + _QUOTED + rb"(?: -> " + _QUOTED + rb")?\n"
    rb"|^" + _QUOTED + rb":\n",
    re.MULTILINE,
)
_KINDS = {
    b"f": stat.S_IFREG,
    b"-": stat.S_IFREG,
    b"d": stat.S_IFDIR,
    b"l": stat.S_IFLNK,
    b"p": stat.S_IFIFO,
    b"s": stat.S_IFSOCK,
    b"c": stat.S_IFCHR,
    b"b": stat.S_IFBLK,
}
_LONGEST = 4000
"""Bytes of a path; a longer one cannot be opened."""
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_CHUNK = 500
_SECONDS = 60
"""A file may turn into one that cannot be read to its end."""


_MARK = re.compile(rb"(.) ([0-7]+) \d+ [^ ]+ (\d+)\.(\d+)")
"""Kind, mode, inode, size and time of change, in one text: no change of an entry leaves all of it as it was."""


class _Entry(NamedTuple):
    """One entry as it is told inside. Equal ones hold the same."""

    mark: bytes
    target: bytes
    """Of a symlink."""

    @property
    def mode(self) -> int:
        fields = _MARK.fullmatch(self.mark)
        assert fields is not None
        return _KINDS.get(fields[1], 0) | int(fields[2], 8)

    @property
    def is_racy(self) -> bool:
        fields = _MARK.fullmatch(self.mark)
        assert fields is not None
        return time.time_ns() - (int(fields[3]) * 1_000_000_000 + int(fields[4][:9])) <= RACY_NS


class _Listing(NamedTuple):
    entries: Mapping[bytes, _Entry]
    read: Mapping[bytes, bytes]
    """Files below .git that were read on the way."""


class InsideTree:
    """Digest of the folder `cwd` inside. `own` runs a script of the driver's."""

    def __init__(self, own: Callable[[str], Ran], cwd: str, *, finds: bool | None = None) -> None:
        self._own = own
        self._cwd = shlex.quote(cwd)
        self._known: dict[bytes, tuple[_Entry, int]] = {}
        self._finds = finds
        """Whether there is a `find` that will do; None: not yet known."""

    def digest(self) -> str | None:
        """None when something in the tree cannot be read."""
        listing = self._list() or self._list()  # a second time: something may have gone while it was looked at
        if listing is None:
            return None
        listed = listing.entries
        known = {path: entry for path, (mark, entry) in self._known.items() if listed.get(path) == mark}
        fresh = self._fresh({path: mark for path, mark in listed.items() if path not in known})
        if fresh is None:
            return None
        kept = {path: entry for path, entry in fresh.items() if not listed[path].is_racy}
        self._known = {path: (listed[path], entry) for path, entry in {**known, **kept}.items()}
        head = head_named(lambda path: listing.read[path] if path in listing.read else self._read(path))
        return digest_of(sum(known.values()) + sum(fresh.values()), head)

    def head(self) -> bytes:
        """The commit that .git/HEAD names; see `head_named`."""
        return head_named(self._read)

    def _list(self) -> _Listing | None:
        if self._finds is None:
            self._finds = self._own(_CAN_FIND).status == 0
        ran = self._own(_LIST.format(cwd=self._cwd, lister=_find_command() if self._finds else _ls_command()))
        if ran.status or ran.signal:
            return None
        read, rest = {}, ran.output
        while not rest.startswith(b"\0"):
            place, held, rest = rest.split(b"\0", 2)
            read[place] = held
        entries = _found(rest[1:]) if self._finds else _listed(rest[1:])
        return None if any(len(path) > _LONGEST for path in entries) else _Listing(entries, read)

    def _fresh(self, listed: Mapping[bytes, _Entry]) -> dict[bytes, int] | None:
        """Entry hashes of what is not known yet; None when something cannot be read."""
        files = [path for path, mark in listed.items() if stat.S_ISREG(mark.mode)]
        digests = self._hash(files)
        if digests is None:
            return None
        held = dict(zip(files, digests, strict=True))
        return {path: entry_hash(path, mark.mode, held.get(path, mark.target)) for path, mark in listed.items()}

    def _hash(self, paths: Sequence[bytes]) -> list[bytes] | None:
        """SHA-256 of each file; None when one cannot be read."""
        found: list[bytes] = []
        for some in _chunks(paths):
            named = " ".join(shlex.quote("./" + path.decode("utf-8", "surrogateescape")) for path in some)
            ran = self._own(f"cd -- {self._cwd} && timeout {_SECONDS} sha256sum -z -- {named}")
            lines = ran.output.split(b"\0")[:-1]
            if ran.status or ran.signal or len(lines) != len(some):
                return None
            found += [bytes.fromhex(line[:64].decode()) for line in lines]
        return found

    def _read(self, path: bytes) -> bytes | None:
        """A regular file, reached through no symlink."""
        ran = self._own(_READ.format(cwd=self._cwd, path=shlex.quote(path.decode("utf-8", "surrogateescape"))))
        return None if ran.status or ran.signal else ran.output


def _find_command() -> str:
    names = [*sorted(EXCLUDED_NAMES), b"*" + EXCLUDED_SUFFIX]
    return _FIND.format(names=" -o ".join(f"-name {shlex.quote(name.decode())}" for name in names))


def _ls_command() -> str:
    names = [*sorted(EXCLUDED_NAMES), b"*" + EXCLUDED_SUFFIX]
    return _LS.format(names=" ".join(f"--ignore={shlex.quote(name.decode())}" for name in names))


def _found(listing: bytes) -> dict[bytes, _Entry]:
    """Path within the tree -> entry, as `find` tells them."""
    told = listing.split(b"\0")
    entries = {}
    for line, target in zip(told[0::2], told[1::2], strict=False):
        mark, below, path = line.partition(b" ./")
        if below:  # not the folder itself
            entries[path] = _Entry(mark, target)
    return entries


def _listed(listing: bytes) -> dict[bytes, _Entry]:
    """Path within the tree -> entry, as `ls` tells them."""
    entries, folder = {}, b""
    for line in _LISTED.finditer(listing):
        inode, kind, permissions, size, changed, name, target, header = line.groups()
        if header is not None:
            folder = _plain(header)[2:]  # "." or "./..."
            continue
        path = folder + b"/" + _plain(name) if folder else _plain(name)
        mark = b"%s %o %s %s %s" % (kind, _mode(permissions), inode, size.replace(b" ", b""), changed)
        entries[path] = _Entry(mark, _plain(target or b""))
    return entries


def _mode(letters: bytes) -> int:
    """The nine permission bits of "rwxr-xr-x"; a small s or t stands for an x as well."""
    return sum(1 << (8 - place) for place, letter in enumerate(letters) if letter in b"rwxst")


def _plain(quoted: bytes) -> bytes:
    if b"\\" not in quoted:
        return quoted
    return _ESCAPE.sub(
        lambda one: bytes([int(one[1], 8)]) if len(one[1]) == 3 else _ESCAPED.get(one[1], one[1]), quoted
    )


def _chunks(paths: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (paths[first : first + _CHUNK] for first in range(0, len(paths), _CHUNK))
