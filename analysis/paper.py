"""The release of "The Replay Gap" (arXiv 2608.08239): its rows, its printed numbers, both from one folder.

Nothing here is corrected silently: a row that looks wrong (a stale fork, G23) stays in and is named. What the
release does not hold (a resolved flag, the prefix actions, the logs) is absent here too and never stands as
zero.

`bucket` says which rows are early: `rank` = the smallest fork step within (run, instance, alias) is early,
every other late, which gives the published cells (G14); `released` = the `fork_bucket` column.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from analysis import patches
from analysis.divergence import (
    Bounds,
    Divergence,
    Kind,
    action_agreement,
    context_validity,
    kind_of,
    truncated_bounds,
)

Direction = Literal["up", "down"]
ArmName = Literal["control", "swap"]
Depth = Literal["early", "late"]
Bucket = Literal["rank", "released"]
Tier = Literal["full", "easy", "nudge"]
Alias = Literal["small", "large"]
Late = Literal["mean", "deepest"]
"""A (run, instance) with several late forks counts by their mean difference, or by its deepest fork alone."""
Unit = Literal["pair", "instance"]
"""What a bootstrap draws: pairs as if independent, or instances with all their pairs (G24)."""

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
ARMS: tuple[ArmName, ...] = get_args(ArmName)
DEPTHS: tuple[Depth, ...] = get_args(Depth)
TIERS: tuple[Tier, ...] = get_args(Tier)
LATES: tuple[Late, ...] = get_args(Late)
UNITS: tuple[Unit, ...] = get_args(Unit)
STATUSES = ("Submitted", "LimitsExceeded", "ContextWindowExceededError", "RepeatedFormatError")
FRACTIONS = (0.3, 0.7)

RUNS: Mapping[tuple[Direction, Tier], str] = {
    ("up", "full"): "pilot30",
    ("up", "easy"): "easy",
    ("up", "nudge"): "nudge",
    ("down", "full"): "pilot30_rev",
    ("down", "easy"): "easy_rev",
    ("down", "nudge"): "nudge_rev",
}
"""Up: base small (4B), swap to large (14B); down: the reverse."""
BASE_ALIAS: Mapping[Direction, Alias] = {"up": "small", "down": "large"}


class PaperDataError(ValueError):
    """The folder is not the release, or a file of it is damaged; one line naming file and field."""


@dataclass(frozen=True, slots=True)
class BaseRun:
    run: str
    instance: str
    exit_status: str
    patch: str
    turns: int
    """Assistant turns (format errors are not among them, G20)."""
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class BranchRow:
    direction: Direction
    tier: Tier
    arm: ArmName
    instance: str
    fork_step: int
    """k, 1-based assistant turn that the branch decides again."""
    rank_depth: Depth
    released_depth: Depth
    parted: Divergence
    edits: int
    edit: float
    """Normalised edit distance as released, in [0, 1]."""
    patch: str
    patch_similarity: float
    """To the base's patch, as released."""
    replay_mismatches: int | None
    """Prefix actions whose return code differed; None = not recorded."""
    base: BaseRun
    """The base as stored; for a stale row not the one that was forked."""

    def depth(self, bucket: Bucket) -> Depth:
        return self.rank_depth if bucket == "rank" else self.released_depth

    @property
    def points(self) -> tuple[int, ...]:
        """The fork steps that G4 gives for the stored base."""
        return tuple(max(1, round(f * self.base.turns)) for f in FRACTIONS)

    @property
    def stale(self) -> bool:
        """At no 30/70 % point of the stored base: the base was run again and overwritten (G23)."""
        return self.fork_step not in self.points

    @property
    def adjusted_edit(self) -> float:
        """`edit`, but 0 for a branch that copies the base and merely runs longer (G20)."""
        return 0.0 if self.parted.kind == "extended" else self.edit


@dataclass(frozen=True)
class Release:
    bases: tuple[BaseRun, ...]
    branches: tuple[BranchRow, ...]
    unscored: int
    """Branches of summary.json without a divergence row; they are in no table."""

    def cell(
        self, direction: Direction, arm: ArmName, depth: Depth, bucket: Bucket, tier: Tier | None = None
    ) -> tuple[BranchRow, ...]:
        """The branches of one cell of the paper's tables, all tiers unless one is named."""
        want = (direction, arm, depth)
        rows = (r for r in self.branches if (r.direction, r.arm, r.depth(bucket)) == want)
        return tuple(r for r in rows if tier in (None, r.tier))

    @cached_property
    def base_of(self) -> Mapping[tuple[str, str], BaseRun]:
        """(run name, instance) -> base."""
        return {(b.run, b.instance): b for b in self.bases}


# --------------------------------------------------------------------------------------------------- reading


def load_release(folder: Path) -> Release:
    """Reads summary.json and six *.divergence.json; PaperDataError names what is missing or impossible."""
    summary = list(_rows(folder, "summary.json"))
    runs, arms = tuple(RUNS.values()), ("base", "branch")
    bases: dict[tuple[str, str], BaseRun] = {}
    found: dict[_Key, str] = {}
    for raw in summary:
        run = raw.choice("run", runs)
        if raw.choice("arm", arms) == "base":
            if (run, raw.text("instance_id")) in bases:
                raise PaperDataError(f"{raw.where}: a second base of {run} {raw.text('instance_id')}")
            bases[run, raw.text("instance_id")] = _base(raw)
        else:
            found[_branch_key(raw, run)] = raw.text("patch")
    branches = tuple(row for key in RUNS for row in _branches(folder, key, bases, found))
    return Release(tuple(bases.values()), branches, unscored=len(found) - len(branches))


_T = TypeVar("_T")
_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class _Raw:
    """One JSON object and where it stood, so that every complaint has an address."""

    where: str
    fields: Mapping[str, Any]

    def get(self, field: str, kind: type[_T]) -> _T:
        if field not in self.fields:
            raise PaperDataError(f"{self.where}: no field {field!r}")
        value = self.fields[field]
        if kind is float and type(value) is int and abs(value) <= _LARGEST:
            value = float(value)
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise PaperDataError(f"{self.where}: field {field!r} is {value!r:.40}, expected {kind.__name__}")
        return value

    def text(self, field: str) -> str:
        return self.get(field, str)

    def number(self, field: str, *, low: int = 0) -> int:
        value = self.get(field, int)
        if not low <= value <= _LARGEST:
            raise PaperDataError(f"{self.where}: field {field!r} is {value!r:.40}, expected at least {low}")
        return value

    def maybe(self, field: str) -> int | None:
        if field in self.fields and self.fields[field] is None:
            return None  # null is a value here, a missing field is not
        return self.number(field)

    def share(self, field: str) -> float:
        value = self.get(field, float)
        if not 0 <= value <= 1:
            raise PaperDataError(f"{self.where}: field {field!r} is {value}, expected 0 to 1")
        return value

    def choice(self, field: str, names: tuple[_T, ...]) -> _T:
        value = self.text(field)
        if value not in names:
            raise PaperDataError(f"{self.where}: field {field!r} is {value!r:.40}, expected one of {names}")
        return cast(_T, value)


def _rows(folder: Path, name: str) -> Iterator[_Raw]:
    try:
        loaded = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PaperDataError(f"no {name} in {folder}: the release has summary.json and six *.divergence.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PaperDataError(f"{folder / name}: cannot be read as JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(loaded, list) or not all(isinstance(row, dict) for row in loaded):
        raise PaperDataError(f"{folder / name}: expected a list of objects")
    return (_Raw(f"{folder / name} row {i}", row) for i, row in enumerate(loaded))


def _base(raw: _Raw) -> BaseRun:
    return BaseRun(
        run=raw.text("run"),
        instance=raw.text("instance_id"),
        exit_status=raw.text("exit_status"),
        patch=raw.text("patch"),
        turns=raw.number("n_steps"),
        prompt_tokens=raw.number("prompt_tokens"),
        completion_tokens=raw.number("completion_tokens"),
    )


class _Key(NamedTuple):
    run: str
    instance: str
    alias: Alias
    fork_step: int


def _branch_key(raw: _Raw, run: str) -> _Key:
    alias: Alias = raw.choice("alias", get_args(Alias))
    return _Key(run, raw.text("instance_id"), alias, raw.number("fork_step", low=1))


def _branches(
    folder: Path,
    key: tuple[Direction, Tier],
    bases: Mapping[tuple[str, str], BaseRun],
    branch_patches: Mapping[_Key, str],
) -> Iterator[BranchRow]:
    run = RUNS[key]
    raws: dict[_Key, _Raw] = {}
    for raw in _rows(folder, f"{run}.divergence.json"):
        if (k := _branch_key(raw, run)) in raws:
            raise PaperDataError(f"{raw.where}: a second row for {k.instance} {k.alias} at {k.fork_step}")
        raws[k] = raw
    first: dict[tuple[str, Alias], int] = {}
    for k in raws:
        first[k.instance, k.alias] = min(k.fork_step, first.get((k.instance, k.alias), k.fork_step))
    for k, raw in raws.items():
        if (run, k.instance) not in bases or k not in branch_patches:
            lacking = "branch" if (run, k.instance) in bases else "base"
            raise PaperDataError(f"{raw.where}: summary.json has no {lacking} for it")
        rank: Depth = "early" if k.fork_step == first[k.instance, k.alias] else "late"
        yield _branch(raw, key, k, rank, bases[run, k.instance], branch_patches[k])


def _branch(raw: _Raw, key: tuple[Direction, Tier], k: _Key, rank: Depth, base: BaseRun, patch: str) -> BranchRow:
    return BranchRow(
        direction=key[0],
        tier=key[1],
        arm="control" if k.alias == BASE_ALIAS[key[0]] else "swap",
        instance=k.instance,
        fork_step=k.fork_step,
        rank_depth=rank,
        released_depth=raw.choice("fork_bucket", DEPTHS),
        parted=_parted(raw),
        edits=raw.number("edit_distance"),
        edit=raw.share("normalized_edit_distance"),
        patch=patch,
        patch_similarity=raw.share("patch_similarity"),
        replay_mismatches=raw.maybe("replay_mismatches"),
        base=base,
    )


def _parted(raw: _Raw) -> Divergence:
    at = raw.maybe("first_divergent_action")
    n_base, n_branch = raw.number("n_actions_base"), raw.number("n_actions_branch")
    try:
        return Divergence(at, kind_of(at, n_base, n_branch), n_base, n_branch)
    except ValueError as error:
        raise PaperDataError(f"{raw.where}: {error}") from error


# ------------------------------------------------------------------------------------------------ recomputed


class CellFigures(NamedTuple):
    """One cell of Table 1. A mean is None where it has no terms."""

    n: int
    """Branches."""
    instances: int
    kinds: Mapping[Kind, int]
    edit: float | None
    adjusted_edit: float | None
    """Mean edit distance with pure extensions at 0 (G20)."""
    parted: int
    """Branches the paper calls diverged: every kind but identical."""
    first: float | None
    """Mean 0-based first differing action over those, 0 when it is the fork decision itself."""
    at_zero: int
    """Branches that differ at the fork decision."""
    agreement: float | None
    """The paper's replay validity (G12)."""
    context: float | None
    """Context validity (M22)."""


def figures(rows: Sequence[BranchRow]) -> CellFigures:
    """Everything the paper and the correction say of one group of branches."""
    at = [r.parted.at for r in rows if r.parted.at is not None]
    return CellFigures(
        n=len(rows),
        instances=len({r.instance for r in rows}),
        kinds=Counter(r.parted.kind for r in rows),
        edit=_mean(r.edit for r in rows),
        adjusted_edit=_mean(r.adjusted_edit for r in rows),
        parted=len(at),
        first=_mean(at),
        at_zero=at.count(0),
        agreement=_mean(v for r in rows if (v := action_agreement(r.parted)) is not None),
        context=_mean(v for r in rows if (v := context_validity(r.parted)) is not None),
    )


@dataclass(frozen=True)
class PairedDeltas:
    """Swap minus control, one number per (tier, instance) that has both arms at this depth."""

    values: NDArray[np.float64]
    """Shape (pairs,)."""
    instances: tuple[str, ...]
    """Shape (pairs,): the cluster of each pair."""

    @property
    def mean(self) -> float | None:
        return _mean(self.values)


def paired_deltas(
    release: Release,
    direction: Direction,
    depth: Depth,
    *,
    bucket: Bucket,
    late: Late = "mean",
    measure: Callable[[BranchRow], float] = attrgetter("edit"),
    control_measure: Callable[[BranchRow], float] | None = None,
) -> PairedDeltas:
    """Paired differences of a measure of a branch; a second measure for the control serves bounds."""
    swaps = _by_pair(release.cell(direction, "swap", depth, bucket), late, measure)
    controls = _by_pair(release.cell(direction, "control", depth, bucket), late, control_measure or measure)
    shared = sorted(swaps.keys() & controls.keys())
    values = np.array([swaps[pair] - controls[pair] for pair in shared], dtype=np.float64)
    return PairedDeltas(values, tuple(instance for _, instance in shared))


def truncated_delta_bounds(release: Release, direction: Direction, depth: Depth, *, bucket: Bucket) -> Bounds | None:
    """Bounds (no interval) of the paired delta with each branch and its base cut to the shorter list (M8)."""

    def low(row: BranchRow) -> float:
        return truncated_bounds(row.edits, row.parted).low

    def high(row: BranchRow) -> float:
        return truncated_bounds(row.edits, row.parted).high

    least = paired_deltas(release, direction, depth, bucket=bucket, measure=low, control_measure=high).mean
    most = paired_deltas(release, direction, depth, bucket=bucket, measure=high, control_measure=low).mean
    return None if least is None or most is None else Bounds(least, most)


def bootstrap(deltas: PairedDeltas, unit: Unit, rng: np.random.Generator, resamples: int) -> NDArray[np.float64]:
    """Bootstrap means, shape (resamples,). ValueError with fewer than two units to draw from."""
    labels = deltas.instances if unit == "instance" else tuple(map(str, range(len(deltas.values))))
    names, member = np.unique(np.array(labels, dtype=str), return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"{len(names)} {unit}(s): a bootstrap needs at least two")
    sums, sizes = np.bincount(member, weights=deltas.values), np.bincount(member)
    drawn = rng.integers(0, len(names), size=(resamples, len(names)))
    means: NDArray[np.float64] = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return means


def percentile_interval(means: NDArray[np.float64], level: float) -> Bounds:
    """Central percentile interval of bootstrap means at `level`, e.g. 0.95."""
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Bounds(float(low), float(high))


class StitchFigures(NamedTuple):
    n: int
    """Swap branches whose target model has a base of its own on the instance."""
    without_base: int
    either: int
    """Of `n`, those in which prediction or branch has a patch: the denominator depends on the arm (M36)."""
    similarity: float | None
    """Mean over `either`."""


def log_stitch(release: Release, direction: Direction, depth: Depth, *, bucket: Bucket) -> StitchFigures:
    """Log-stitched replay: the target's own base patch predicts the branch's patch, whatever k (G15).

    Patches are stripped first: unstripped, up late and down early miss the published figures.
    """
    swaps = release.cell(direction, "swap", depth, bucket)
    other: Direction = "down" if direction == "up" else "up"
    own = [(release.base_of.get((RUNS[other, r.tier], r.instance)), r) for r in swaps]
    pairs = [(base.patch.strip(), r.patch.strip()) for base, r in own if base is not None]
    shown = [pair for pair in pairs if any(pair)]
    return StitchFigures(
        len(pairs), len(swaps) - len(pairs), len(shown), _mean(patches.similarity(*pair) for pair in shown)
    )


class SelfReference(NamedTuple):
    n: int
    either: int
    similarity: float | None


def self_reference(release: Release, direction: Direction) -> SelfReference:
    """The base's patch predicts its own control's (G15); the paper calls it a ceiling, M26 does not."""
    controls = [r for r in release.branches if (r.direction, r.arm) == (direction, "control")]
    shown = [r.patch_similarity for r in controls if r.base.patch.strip() or r.patch.strip()]
    return SelfReference(len(controls), len(shown), _mean(shown))


class FidelityFigures(NamedTuple):
    unrecorded: int
    """Branches without a mismatch count."""
    without_prefix: int
    """Branches forked at turn 1: nothing to re-execute."""
    checked: int
    turns: int
    """Prefix turns of the checked branches: a lower bound of the replayed actions."""
    several: int
    """Branches whose base suffix holds more actions than turns: the model called several tools in a turn."""
    mismatched: int
    """Checked branches with any return code that differs."""
    mismatches: int

    @property
    def actions(self) -> int | None:
        """Replayed actions: `turns`, or None where a base ran several a turn (prefixes are not released)."""
        return None if self.several else self.turns


def fidelity(rows: Sequence[BranchRow]) -> FidelityFigures:
    """What the release says of prefix re-execution: return codes only (G27)."""
    recorded = [r for r in rows if r.replay_mismatches is not None]
    checked = [r for r in recorded if r.fork_step > 1]
    counts = [r.replay_mismatches or 0 for r in checked]
    return FidelityFigures(
        unrecorded=len(rows) - len(recorded),
        without_prefix=len(recorded) - len(checked),
        checked=len(checked),
        turns=sum(r.fork_step - 1 for r in checked),
        several=sum(r.parted.n_base > r.base.turns - r.fork_step + 1 for r in rows),
        mismatched=sum(map(bool, counts)),
        mismatches=sum(counts),
    )


def exit_counts(release: Release, run: str) -> Counter[str]:
    """Exit status -> bases of one run."""
    return Counter(b.exit_status for b in release.bases if b.run == run)


def stale_rows(release: Release) -> tuple[BranchRow, ...]:
    """Branches at no 30/70 % point of the stored base (G23)."""
    return tuple(r for r in release.branches if r.stale)


def inconsistent_rows(release: Release) -> tuple[BranchRow, ...]:
    """Branches whose released normalised distance is not their own count over the longer list (G10)."""
    return tuple(
        r
        for r in release.branches
        if not math.isclose(r.edit, r.edits / max(r.parted.n_base, r.parted.n_branch, 1), abs_tol=1e-9)
    )


class Overlap(NamedTuple):
    unique: int
    """Instances in all tiers of the direction."""
    easy_and_nudge: int
    full_and_other: int


def overlap(release: Release, direction: Direction) -> Overlap:
    """How many instances the tiers share: tiers are not independent samples (G24)."""
    rows = [r for r in release.branches if r.direction == direction]
    full, easy, nudge = ({r.instance for r in rows if r.tier == tier} for tier in TIERS)
    return Overlap(len(full | easy | nudge), len(easy & nudge), len(full & (easy | nudge)))


class BaseTokens(NamedTuple):
    """Means per base run."""

    prompt: float | None
    completion: float | None


def base_tokens(release: Release) -> BaseTokens:
    """What a base run costs, its whole conversation counted at every call."""
    return BaseTokens(_mean(b.prompt_tokens for b in release.bases), _mean(b.completion_tokens for b in release.bases))


def _by_pair(
    rows: Sequence[BranchRow], late: Late, measure: Callable[[BranchRow], float]
) -> dict[tuple[str, str], float]:
    groups: dict[tuple[str, str], list[BranchRow]] = {}
    for row in rows:
        groups.setdefault((row.tier, row.instance), []).append(row)
    if late == "deepest":
        return {pair: measure(max(group, key=lambda r: r.fork_step)) for pair, group in groups.items()}
    return {pair: math.fsum(map(measure, group)) / len(group) for pair, group in groups.items()}


def _mean(values: Iterable[float]) -> float | None:
    terms = [float(v) for v in values]
    return math.fsum(terms) / len(terms) if terms else None


# ------------------------------------------------------------------------------------------------- published
# As printed, digit for digit: what is compared is text.


class PrintedCell(NamedTuple):
    n: str
    edit: str
    diverged: str
    """Per cent."""
    first: str
    validity: str
    """Per cent."""


CellName = tuple[Direction, ArmName, Depth]
CELLS: tuple[CellName, ...] = tuple((d, a, k) for d in DIRECTIONS for a in ARMS for k in DEPTHS)

TABLE_1: Mapping[CellName, PrintedCell] = {
    ("up", "control", "early"): PrintedCell("88", ".674", "95.5", "4.9", "27.3"),
    ("up", "control", "late"): PrintedCell("91", ".489", "90.1", "6.3", "62.7"),
    ("up", "swap", "early"): PrintedCell("88", ".941", "100.0", "0.6", "3.2"),
    ("up", "swap", "late"): PrintedCell("90", ".752", "98.9", "3.6", "34.4"),
    ("down", "control", "early"): PrintedCell("90", ".232", "53.3", "17.4", "73.8"),
    ("down", "control", "late"): PrintedCell("90", ".158", "50.0", "11.0", "85.8"),
    ("down", "swap", "early"): PrintedCell("90", ".895", "97.8", "2.1", "8.0"),
    ("down", "swap", "late"): PrintedCell("90", ".611", "83.3", "4.1", "39.4"),
}


class PrintedPair(NamedTuple):
    """Mean edit distances of one run pair."""

    control_early: str
    control_late: str
    swap_early: str
    swap_late: str

    def of(self, arm: ArmName, depth: Depth) -> str:
        return self[2 * ARMS.index(arm) + DEPTHS.index(depth)]


PAIRS: Mapping[tuple[Direction, Tier], PrintedPair] = {
    ("up", "full"): PrintedPair(".634", ".468", ".932", ".789"),
    ("up", "easy"): PrintedPair(".669", ".481", ".951", ".759"),
    ("up", "nudge"): PrintedPair(".717", ".518", ".940", ".706"),
    ("down", "full"): PrintedPair(".192", ".093", ".910", ".606"),
    ("down", "easy"): PrintedPair(".233", ".168", ".859", ".653"),
    ("down", "nudge"): PrintedPair(".272", ".214", ".917", ".575"),
}


class PrintedDelta(NamedTuple):
    delta: str
    interval: str
    """Bootstrap 95 %."""
    bonferroni: str
    """Lower end at 98.75 %."""


DELTAS: Mapping[tuple[Direction, Depth], PrintedDelta] = {
    ("up", "early"): PrintedDelta("+.267", "[.190, .349]", ".172"),
    ("up", "late"): PrintedDelta("+.254", "[.189, .317]", ".175"),
    ("down", "early"): PrintedDelta("+.663", "[.580, .744]", ".560"),
    ("down", "late"): PrintedDelta("+.453", "[.374, .534]", ".347"),
}

AT_ZERO: Mapping[CellName, str] = {
    ("up", "swap", "early"): "73.9",
    ("down", "swap", "early"): "76.7",
    ("up", "control", "early"): "35.2",
    ("down", "control", "early"): "5.6",
}
AT_ZERO_ALL_SWAPS = "54.7"

EXITS: Mapping[tuple[Direction, Tier], tuple[int, int, int, int]] = {
    ("up", "full"): (7, 17, 3, 3),
    ("up", "easy"): (8, 20, 0, 1),
    ("up", "nudge"): (11, 16, 2, 1),
    ("down", "full"): (3, 24, 3, 0),
    ("down", "easy"): (10, 13, 6, 1),
    ("down", "nudge"): (6, 17, 7, 0),
}
"""Bases per exit status, in the order of STATUSES."""


class PrintedFidelity(NamedTuple):
    branches: str
    actions: str
    codes: str
    """Per cent of actions whose return code matches."""
    exact: str
    """Per cent of branches without a mismatch."""


FIDELITY: Mapping[tuple[Direction, Tier], PrintedFidelity] = {
    ("up", "full"): PrintedFidelity("116", "1524", "100", "100"),
    ("down", "full"): PrintedFidelity("120", "2624", "100", "100"),
    ("up", "easy"): PrintedFidelity("116", "1500", "100", "100"),
    ("down", "easy"): PrintedFidelity("116", "2112", "99.95", "99.1"),
    ("up", "nudge"): PrintedFidelity("120", "1660", "100", "100"),
    ("down", "nudge"): PrintedFidelity("120", "2282", "100", "100"),
}
FIDELITY_ALL = PrintedFidelity("708", "11702", "99.99", "99.9")


class PrintedStitch(NamedTuple):
    n: str
    agreement: str
    missed: str
    false_successes: str
    either: str
    similarity: str


STITCH: Mapping[tuple[Direction, Depth], PrintedStitch] = {
    ("up", "early"): PrintedStitch("88", "96.6%", "2 of 2", "1", "26", ".108"),
    ("up", "late"): PrintedStitch("90", "97.8%", "1 of 1", "1", "33", ".020"),
    ("down", "early"): PrintedStitch("89", "100%", "0 of 0", "0", "32", ".033"),
    ("down", "late"): PrintedStitch("89", "100%", "0 of 0", "0", "26", ".000"),
}
SELF_REFERENCE: Mapping[Direction, str] = {"up": ".31", "down": ".53"}
OTHER: Mapping[str, str] = {
    "limit_full_up": "17/30",
    "limit_full_down": "24/30",
    "prompt_tokens": "333k",
    "completion_tokens": "6.6k",
    "prefix_actions": "16.5",
    "flips_swap": "5",
    "flips_control": "0 of 359",
    "resolution": "0-3%",
    "decisive": "0 of 5",
    "always_fail": "2 of 5",
}
"""Limit hits among full-tier bases, means per base and branch, and what hangs on the grading."""
