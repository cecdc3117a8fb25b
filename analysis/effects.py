"""What a swap does at a fork: to behaviour (W, D2, eta) and to outcomes (tau, gains, losses).

Every quantity contrasts branches with branches; none is anchored on the base, so all hold under any fork rule.
Per fork, distances are taken per pair of replicates and then averaged, never between averages (estimands M4). Forks
are averaged within an instance, then instances, each with equal weight (M35). What a design cannot identify is None.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from analysis.divergence import edit_distance
from analysis.load import BranchRow, ForkKey

Distance = Callable[[BranchRow, BranchRow], float | None]
"""Between the suffixes of two branches of one fork; None where it is not defined."""


def whole_suffix(one: BranchRow, other: BranchRow) -> float:
    """Normalised edit distance between the two lists of commands after the fork."""
    return edit_distance(one.actions, other.actions)


def within(horizon: int) -> Distance:
    """Edit distance within `horizon` model calls, ended runs padded with their stop (M7).

    None where fewer calls than the horizon were left at the fork (B_f < h).
    """

    def distance(one: BranchRow, other: BranchRow) -> float | None:
        left = one.branch.fork.calls_left
        if left is not None and left < horizon:
            return None
        stops = {"base_stop": one.stop.value, "branch_stop": other.stop.value}
        return edit_distance(one.calls, other.calls, horizon=horizon, **stops)

    return distance


@dataclass(frozen=True)
class ForkEffect:
    """Effect on behaviour at one fork."""

    cluster: str
    d_sc: float
    """Mean distance between a swap and a control branch."""
    d_cc: float
    """Mean distance between two control branches: the noise floor (M5)."""
    d_ss: float | None
    """Mean distance between two swap branches; None with fewer than two."""

    @property
    def w(self) -> float:
        """W = d_sc - d_cc (M4). Negative does not mean "no effect"."""
        return self.d_sc - self.d_cc


@dataclass(frozen=True)
class Effect:
    """A mean over instances of means over forks, with what it rests on."""

    value: float | None
    """None when no fork identifies it."""
    instances: int
    forks: int
    branches: int


@dataclass(frozen=True)
class BehaviourEffect:
    """W and its parts over many forks."""

    w: Effect
    floor: Effect
    """d_cc."""
    d2: Effect
    """Energy form 2 d_sc - d_cc - d_ss; may be below 0 and is never clipped (M4)."""
    eta: float | None
    """sum W / sum (1 - d_cc), sums over instances: the share of what the floor leaves (M6)."""
    dropped: int
    """Forks with both arms that identify no W: fewer than two controls, or a horizon that does not fit."""


@dataclass(frozen=True)
class OutcomeEffect:
    """tau and its parts over many forks (M10). Unscored branches are left out."""

    tau: Effect
    """Mean resolved rate of swap less that of control."""
    gains: Effect
    """P(a swap branch resolves and a control branch of the same fork does not)."""
    losses: Effect
    """The reverse."""
    swap_resolved: tuple[int, int]
    """(resolved, graded) branches."""
    control_resolved: tuple[int, int]


def behaviour_effect(forks: Mapping[ForkKey, Sequence[BranchRow]], distance: Distance) -> BehaviourEffect:
    """W, floor, D2 and eta over `forks`."""
    both = {key: rows for key, rows in forks.items() if _arm(rows, "swap") and _arm(rows, "control")}
    effects = {key: effect for key, rows in both.items() if (effect := fork_effect(rows, distance)) is not None}
    branches = {key: len(both[key]) for key in effects}
    w = _mean_effect({key: (effect.cluster, effect.w) for key, effect in effects.items()}, branches)
    floor = _mean_effect({key: (effect.cluster, effect.d_cc) for key, effect in effects.items()}, branches)
    energy = {
        key: (effect.cluster, 2 * effect.d_sc - effect.d_cc - effect.d_ss)
        for key, effect in effects.items()
        if effect.d_ss is not None
    }
    eta = None
    if w.value is not None and floor.value is not None and floor.value < 1:
        eta = w.value / (1 - floor.value)
    return BehaviourEffect(w, floor, _mean_effect(energy, branches), eta, len(both) - len(effects))


def fork_effect(rows: Sequence[BranchRow], distance: Distance) -> ForkEffect | None:
    """The effect at one fork; None with fewer than two controls, without a swap, or where a distance is undefined."""
    swaps, controls = _arm(rows, "swap"), _arm(rows, "control")
    d_sc = _mean_distance(product(swaps, controls), distance)
    d_cc = _mean_distance(combinations(controls, 2), distance)
    if d_sc is None or d_cc is None:
        return None
    return ForkEffect(rows[0].cluster, d_sc, d_cc, _mean_distance(combinations(swaps, 2), distance))


def outcome_effect(forks: Mapping[ForkKey, Sequence[BranchRow]]) -> OutcomeEffect:
    """tau, gains and losses over the forks with graded branches in both arms."""
    taus, gains, losses = {}, {}, {}
    branches = {}
    for key, rows in forks.items():
        swaps, controls = _graded(rows, "swap"), _graded(rows, "control")
        if not swaps or not controls:
            continue
        p_s, p_c = sum(swaps) / len(swaps), sum(controls) / len(controls)
        cluster = rows[0].cluster
        taus[key] = (cluster, p_s - p_c)
        gains[key] = (cluster, p_s * (1 - p_c))
        losses[key] = (cluster, (1 - p_s) * p_c)
        branches[key] = len(swaps) + len(controls)
    return OutcomeEffect(
        _mean_effect(taus, branches),
        _mean_effect(gains, branches),
        _mean_effect(losses, branches),
        _count(forks.values(), "swap"),
        _count(forks.values(), "control"),
    )


def _arm(rows: Sequence[BranchRow], name: str) -> list[BranchRow]:
    return [row for row in rows if row.arm == name]


def _graded(rows: Sequence[BranchRow], name: str) -> list[bool]:
    return [row.resolved for row in _arm(rows, name) if row.resolved is not None]


def _count(forks: Iterable[Sequence[BranchRow]], name: str) -> tuple[int, int]:
    graded = [value for rows in forks for value in _graded(rows, name)]
    return sum(graded), len(graded)


def _mean_distance(pairs: Iterable[tuple[BranchRow, BranchRow]], distance: Distance) -> float | None:
    found = [distance(one, other) for one, other in pairs]
    defined = [value for value in found if value is not None]
    return sum(defined) / len(defined) if defined and len(defined) == len(found) else None


def _mean_effect(values: Mapping[ForkKey, tuple[str, float]], branches: Mapping[ForkKey, int]) -> Effect:
    by_instance: dict[str, list[float]] = {}
    for cluster, value in values.values():
        by_instance.setdefault(cluster, []).append(value)
    means = [sum(group) / len(group) for group in by_instance.values()]
    overall = sum(means) / len(means) if means else None
    return Effect(overall, len(means), len(values), sum(branches[key] for key in values))
