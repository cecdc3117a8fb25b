"""Where and how far two lists of actions part. Pure: no disk, no clock, no random numbers.

An action is the exact command string (G9); a list is what was run from the fork point on. One computation
serves the published column and the corrected one (G22): `at` alone counts mere length as divergence, `kind`
tells it apart.

A missing list is not an empty list: empty is a run that did nothing and has a distance, None has none and is
refused.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

Kind = Literal["identical", "extended", "cut_short", "diverged"]
"""extended: the branch copies the whole base and runs on; cut_short: stops inside it; diverged: differs."""

KINDS: tuple[Kind, ...] = get_args(Kind)


class Divergence(NamedTuple):
    at: int | None
    """0-based first differing action, the shorter length when only length differs; None = identical (G11)."""
    kind: Kind
    n_base: int
    """Actions of the base from the fork point on."""
    n_branch: int
    """Actions of the branch from the fork point on."""


class Bounds(NamedTuple):
    low: float
    high: float


def first_divergence(base: Sequence[str], branch: Sequence[str]) -> Divergence:
    """First index where two lists of command strings differ, and how (G11, G22).

    TypeError for anything but a sequence of str; a bare str and None are refused.
    """
    base, branch = commands(base), commands(branch)
    shorter = min(len(base), len(branch))
    at = next((i for i in range(shorter) if base[i] != branch[i]), None)
    if at is None and len(base) != len(branch):
        at = shorter
    return Divergence(at, kind_of(at, len(base), len(branch)), len(base), len(branch))


def kind_of(at: int | None, n_base: int, n_branch: int) -> Kind:
    """The kind from three released numbers; ValueError when no two lists could give them."""
    shorter = min(n_base, n_branch)
    possible = shorter >= 0 and (n_base == n_branch if at is None else 0 <= at <= shorter)
    if not possible or (at == n_base == n_branch):
        raise ValueError(f"no two lists of {n_base} and {n_branch} actions first differ at {at}")
    if at is None:
        return "identical"
    if at < shorter:
        return "diverged"
    return "extended" if n_branch > n_base else "cut_short"


def edit_count(base: Sequence[str], branch: Sequence[str]) -> int:
    """Levenshtein distance in whole commands, every edit at cost 1: a metric on lists. TypeError as above."""
    return _levenshtein(commands(base), commands(branch))


def edit_distance(
    base: Sequence[str],
    branch: Sequence[str],
    *,
    horizon: int | None = None,
    base_stop: str | None = None,
    branch_stop: str | None = None,
) -> float:
    """Normalised edit distance in [0, 1] between two lists of command strings.

    Without `horizon`: `edit_count` / max(len, len, 1) (G10); both empty 0.0, one empty 1.0. Not comparable
    across depths (G25).
    With `horizon` h >= 1: both lists cut to h, one that ended earlier padded with END(stop), divided by h
    (M7). A list shorter than h must name its stop; equal stops pad alike. Whether a fork has h calls left at
    all (B_f) is the caller's to decide.
    TypeError for anything but a sequence of str; ValueError for a horizon below 1 or a missing stop.
    """
    base, branch = commands(base), commands(branch)
    if horizon is None:
        return _levenshtein(base, branch) / max(len(base), len(branch), 1)
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1 step, got {horizon}")
    left = _padded(base, horizon, base_stop, "base_stop")
    return _levenshtein(left, _padded(branch, horizon, branch_stop, "branch_stop")) / horizon


def action_agreement(parted: Divergence) -> float | None:
    """Share of the base's post-fork actions before the first differing one: the paper's validity (G12).

    1.0 when identical; None when the base has no action to agree with and the branch has.
    """
    if parted.at is None:
        return 1.0
    return parted.at / parted.n_base if parted.n_base else None


def context_validity(parted: Divergence) -> float | None:
    """Share of the base's post-fork decisions whose context the branch shares: (at + 1) / n_base (M22).

    The fork decision counts: with first divergence d, decisions 0..d all sit in histories that occur. At most
    1.0, which identical lists have; None when the base has no post-fork decision and the branch has.
    """
    if parted.at is None:
        return 1.0
    return min(1.0, (parted.at + 1) / parted.n_base) if parted.n_base else None


def truncated_bounds(edits: int, parted: Divergence) -> Bounds:
    """Bounds of the normalised edit distance of both lists cut to the shorter, from released numbers (M8).

    With m the shorter length and L the difference in length: at least max(edits - L, 1) / m, since cutting
    undoes at most L edits; at most min(m - at, edits + L) / m, since only what follows `at` can need
    replacing. Both 0 unless `diverged`.
    """
    if parted.kind != "diverged" or parted.at is None:
        return Bounds(0.0, 0.0)
    shorter, surplus = min(parted.n_base, parted.n_branch), abs(parted.n_base - parted.n_branch)
    return Bounds(max(edits - surplus, 1) / shorter, min(shorter - parted.at, edits + surplus) / shorter)


def commands(actions: Sequence[str]) -> Sequence[str]:
    """The list itself when it is a sequence of str, else TypeError.

    Why so strict: rapidfuzz finds "ls" and ["l", "s"] equal, so one unwrapped command would pass as a list of
    letters.
    """
    if isinstance(actions, (str, bytes)) or not isinstance(actions, Sequence):
        raise TypeError(f"expected a list of command strings, got {type(actions).__name__}")
    for i, action in enumerate(actions):
        if not isinstance(action, str):
            raise TypeError(f"action {i} is {type(action).__name__}, not a command string")
    return actions


class _End(NamedTuple):
    """Pads a run that has ended. A type of its own, so that no command string can equal it."""

    stop: str


def _padded(actions: Sequence[str], horizon: int, stop: str | None, name: str) -> list[str | _End]:
    missing = horizon - len(actions)
    if missing > 0 and stop is None:
        raise ValueError(f"{name} is needed: the list ends after {len(actions)} of {horizon} steps")
    return [*actions[:horizon], *[_End(stop or "")] * max(missing, 0)]


def _levenshtein(left: Sequence[str | _End], right: Sequence[str | _End]) -> int:
    from rapidfuzz.distance import Levenshtein  # here: importing it costs more than most commands need

    # rapidfuzz compares hashes (-1 and -2 share one, "a" and 97 another); numbering makes equality exact.
    number: dict[str | _End, int] = {}
    coded = [[number.setdefault(item, len(number)) for item in side] for side in (left, right)]
    return Levenshtein.distance(coded[0], coded[1])
