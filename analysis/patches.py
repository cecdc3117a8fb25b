"""How alike two patches are, by the paper's three measures (G13). A patch is a unified git diff as text; ""
is no change.

Similarity is a ratio of characters, not of meaning, and is not symmetric: the base (or the prediction) comes
first. None is a missing patch and has no similarity: TypeError, never 0.
"""

import difflib
import re
from typing import NamedTuple


class PatchAgreement(NamedTuple):
    file_jaccard: float
    """Shared over all touched files; 1.0 when neither patch touches any."""
    similarity: float
    """difflib ratio of the texts in [0, 1]; 1.0 when both are empty."""
    identical: bool
    """Equal after stripping white space at both ends."""


def compare(base: str, branch: str) -> PatchAgreement:
    """All three measures of G13; TypeError for anything but two str."""
    return PatchAgreement(file_jaccard(base, branch), similarity(base, branch), identical(base, branch))


def files(patch: str) -> frozenset[str]:
    """Paths named by the `diff --git` lines of a patch, without `a/` and `b/`; of a rename the old one."""
    _texts(patch)
    return frozenset(_old_path(line) for line in patch.split("\n") if line.startswith(_HEADER))


def file_jaccard(base: str, branch: str) -> float:
    """Shared over all touched files, in [0, 1]; 1.0 when neither patch names a file."""
    left, right = files(base), files(branch)
    return len(left & right) / len(left | right) if left | right else 1.0


def similarity(base: str, branch: str) -> float:
    """`difflib.SequenceMatcher` ratio of the raw texts, in [0, 1], as the paper computed it (automatic junk
    on).
    """
    _texts(base, branch)
    if base == branch:
        return 1.0
    if not base or not branch:
        return 0.0  # what difflib returns as well, after reading a patch that may hold a whole data file
    return difflib.SequenceMatcher(None, base, branch).ratio()


def identical(base: str, branch: str) -> bool:
    """Equal after stripping white space at both ends."""
    _texts(base, branch)
    return base.strip() == branch.strip()


_HEADER = "diff --git "
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _old_path(line: str) -> str:
    names = line.removeprefix(_HEADER).rstrip("\r")
    if quoted := _QUOTED.match(names):
        return _unquoted(quoted[1]).removeprefix("a/")
    middle = len(names) // 2
    old, new = names[:middle], names[middle + 1 :]
    if names[middle : middle + 1] == " " and old.removeprefix("a/") == new.removeprefix("b/"):
        return old.removeprefix("a/")  # by halves: a path may hold spaces, even " b/"
    # Some agents submit a patch with its line ends written as \n: all of it stands on the header line.
    return names.partition(" b/" if " b/" in names else " ")[0].removeprefix("a/")


_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_LETTERS = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


def _unquoted(name: str) -> str:
    """A name as git quotes it (C escapes, bytes in octal), read; bytes that are not UTF-8 as surrogate escapes."""

    def byte(found: re.Match[str]) -> str:
        code = found[1]
        number = int(code, 8) & 255 if len(code) == 3 else _LETTERS.get(code, ord(code))
        return chr(number)

    # Through Latin-1, where a character is a byte: what git escapes are bytes, what it leaves is ASCII.
    return _ESCAPE.sub(byte, name).encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def _texts(*patches: str) -> None:
    for patch in patches:
        if not isinstance(patch, str):
            raise TypeError(f"a patch is text, got {type(patch).__name__}")
