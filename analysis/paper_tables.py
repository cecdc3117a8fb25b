"""The paper's tables, published | recomputed, and beside them what corrects them. One function a table.

A recomputed cell that differs from the published one as printed is marked, with the reason where it can be computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from analysis import paper
from analysis.divergence import KINDS, Bounds
from analysis.paper import BranchRow, Bucket, Release
from analysis.table import (
    Cell,
    Column,
    Table,
    absent,
    count,
    interval,
    label,
    number,
    percent,
    rate,
    rounded_twice,
)

_DIFFERS = "differs from the published number at the printed precision"
_NO_PREFIX = (
    "not derivable: the release holds no prefix actions, and these bases ran several actions in some turns; "
    "turns is a "
    "lower bound"
)
_NO_OUTCOME = "not derivable: the release holds patches but no resolved flag"
_WHERE = (Column("direction", "dir", is_label=True), Column("depth", "depth", is_label=True))
_CELL = (_WHERE[0], Column("arm", "arm", is_label=True), _WHERE[1])
_PAIR = (_WHERE[0], Column("tier", "tier", is_label=True))


def paper_tables(
    release: Release, *, bucket: Bucket = "rank", rng: np.random.Generator, resamples: int = 10_000
) -> tuple[Table, ...]:
    """Every table of the paper that the release bears on, the corrected ones beside them, warnings and
    summary last.
    """
    by_bucket = (paper_table1, paper_corrected, paper_pairs, paper_deltas)
    tables = [make(release, bucket) for make in by_bucket]
    tables.append(paper_intervals(release, bucket, rng, resamples))
    tables += [paper_at_zero(release, bucket), paper_log_stitch(release, bucket)]
    tables += [paper_exits(release), paper_fidelity(release), paper_other(release), paper_warnings(release)]
    return (*tables, paper_summary(tables))


def paper_table1(release: Release, bucket: Bucket) -> Table:
    """Table 1 of the paper."""
    rows = []
    for name, printed in paper.TABLE_1.items():
        got = paper.figures(release.cell(*name, bucket))
        rows.append((*map(label, name), *_figures(printed, got)))
    groups = {
        "n": "n",
        "edit": "edit",
        "diverged": "% diverged",
        "first": "1st div",
        "validity": "validity %",
    }
    return Table(
        "table1",
        f"Table 1, published | recomputed · {_size(release)} · early/late by {bucket}",
        (*_CELL, *_both(groups)),
        tuple(rows),
        (
            "dir up: base 4B, swap to 14B; down: the reverse. control: same model; swap: the other. early: "
            "forked at 30%.",
            "% diverged counts a mere difference in length (see `corrected`). 1st div: 0-based, over "
            "diverged branches only; "
            "conditioned on the outcome, so arms do not compare by it. validity: action agreement, first "
            "divergence / "
            "post-fork actions of the base.",
            "Not shown: outcomes (no resolved flag in the release). Edit distance does not compare across "
            "depths: the lists differ in length.",
        ),
    )


def _figures(printed: paper.PrintedCell, got: paper.CellFigures) -> Iterator[Cell]:
    yield from _compared(printed.n, count(got.n))
    yield from _compared(printed.edit, number(got.edit))
    yield from _compared_rate(printed.diverged, rate(got.parted, got.n))
    yield from _compared(printed.first, number(got.first, 1, why="no branch diverged"))
    yield from _compared_rate(printed.validity, _percent(got.agreement))


def paper_corrected(release: Release, bucket: Bucket) -> Table:
    """Table 1 with the step-budget refund taken out (G20, G22)."""
    return Table(
        "corrected",
        f"Corrected: kinds of divergence, distance without pure extensions · early/late by {bucket}",
        (
            *_CELL,
            *_under("", {"n": "n", "instances": "inst"}),
            *_under("kind", {"identical": "same", "extended": "ext", "cut_short": "cut", "diverged": "diverged"}),
            *_under("edit", {"edit": "raw", "adjusted_edit": "adj"}),
            *_under("validity", {"agreement": "act", "context": "ctx"}),
        ),
        tuple((*map(label, name), *_corrected(release.cell(*name, bucket))) for name in paper.CELLS),
        (
            "same: identical lists; ext: copies the whole base and runs on (extended); cut: stops inside it "
            "(cut short); diverged: a command "
            "differs, the content divergence. "
            "adj: edit distance with ext branches at 0. act: action agreement (the paper's validity); ctx: "
            "context "
            "validity, (first divergence + 1) / post-fork actions.",
            _extension_note(release),
            "Not shown: refunded steps inside branches that also diverge; `deltas` bounds them by cutting "
            "both lists to the shorter.",
        ),
    )


def _corrected(rows: Sequence[BranchRow]) -> Iterator[Cell]:
    got = paper.figures(rows)
    yield from (count(got.n), count(got.instances))
    yield from (count(got.kinds.get(kind, 0)) for kind in KINDS if kind != "diverged")
    yield rate(got.kinds.get("diverged", 0), got.n)
    yield from map(number, (got.edit, got.adjusted_edit, got.agreement, got.context))


def paper_pairs(release: Release, bucket: Bucket) -> Table:
    """Mean edit distance per run pair."""
    rows = []
    for (direction, tier), printed in paper.PAIRS.items():
        cells = [label(direction), label(tier)]
        for arm, depth in product(paper.ARMS, paper.DEPTHS):
            got = paper.figures(release.cell(direction, arm, depth, bucket, tier))
            cells += [*_compared(printed.of(arm, depth), number(got.edit)), count(got.n)]
        rows.append(tuple(cells))
    names = [f"{arm}_{depth}" for arm, depth in product(paper.ARMS, paper.DEPTHS)]
    heads = {"_published": "publ", "": "rec", "_n": "n"}
    columns = [c for n in names for c in _under(n.replace("_", " "), {n + end: head for end, head in heads.items()})]
    return Table(
        "pairs",
        f"Edit distance per run pair, published | recomputed | branches · early/late by {bucket}",
        (*_PAIR, *columns),
        tuple(rows),
        (f"{_overlap_note(release)} The tiers are not independent samples.",),
    )


def paper_deltas(release: Release, bucket: Bucket) -> Table:
    """Paired swap-control differences of the edit distance, raw, adjusted and cut to the shorter list."""
    rows = [(*map(label, where), *_delta(release, where, bucket)) for where in paper.DELTAS]
    return Table(
        "deltas",
        f"Edit distance, swap minus control, paired, published | recomputed · early/late by {bucket}",
        (
            *_WHERE,
            *_under("", {"pairs": "pairs", "instances": "inst"}),
            *_under("delta", {"delta_published": "published", "delta": "recomputed", "delta_deepest": "deepest"}),
            *_under("adjusted", {"adjusted": "all", "adjusted_deepest": "deepest"}),
            *_under("cut to shorter", {"truncated": "bounds"}),
        ),
        tuple(rows),
        (
            "A pair is one (tier, instance). Where it has several late forks, recomputed and all take their "
            "mean, deepest the "
            "deepest alone. adjusted: pure extensions at 0. cut to shorter: bounds of the delta (not a "
            "confidence interval) "
            "with every branch and its base cut to the shorter list.",
            "Not shown: the effect above the control's own spread, which needs two controls a fork; a floor "
            "differs by "
            "direction, so up and down do not compare.",
        ),
    )


def _delta(release: Release, where: tuple[paper.Direction, paper.Depth], bucket: Bucket) -> Iterator[Cell]:
    def delta(late: paper.Late, measure: str) -> paper.PairedDeltas:
        return paper.paired_deltas(release, *where, bucket=bucket, late=late, measure=attrgetter(measure))

    every, deepest = delta("mean", "edit"), number(delta("deepest", "edit").mean, signed=True)
    published = paper.DELTAS[where].delta
    reason = _several_forks(release, *where, bucket) if deepest.text == published else ""
    yield from (count(len(every.values)), count(len(set(every.instances))))
    yield from (*_compared(published, number(every.mean, signed=True), reason), deepest)
    yield from (number(delta(late, "adjusted_edit").mean, signed=True) for late in paper.LATES)
    yield interval(paper.truncated_delta_bounds(release, *where, bucket=bucket), signed=True)


def paper_intervals(release: Release, bucket: Bucket, rng: np.random.Generator, resamples: int) -> Table:
    """Bootstrap intervals of the paired deltas, drawn by pair and by instance; the generator decides the last
    digit.
    """
    rows = []
    offs: dict[paper.Unit, list[float]] = {unit: [] for unit in paper.UNITS}
    for where, printed in paper.DELTAS.items():
        deltas = paper.paired_deltas(release, *where, bucket=bucket, late="deepest")
        ends = {unit: _ends(deltas, unit, rng, resamples) for unit in paper.UNITS}
        for unit, got in ends.items():
            offs[unit] += _off(printed, got) if got else []
        wide = (interval(got and got.wide, why=_TOO_FEW) for got in ends.values())
        lower = (number(got and got.lower, why=_TOO_FEW) for got in ends.values())
        sizes = (count(len(deltas.values)), count(len(set(deltas.instances))))
        printed_cells = (label(printed.interval), _printed(printed.bonferroni))
        rows.append((*map(label, where), *sizes, printed_cells[0], *wide, printed_cells[1], *lower))
    heads = {"published": "publ", "pair": "by pair", "instance": "by inst"}
    return Table(
        "intervals",
        f"Bootstrap intervals of the paired deltas, published | recomputed twice · {resamples} resamples",
        (
            *_WHERE,
            *_under("", {"pairs": "pairs", "instances": "inst"}),
            *_under("95%", {f"interval95_{key}": head for key, head in heads.items()}),
            *_under("98.75% lower end", {f"lower9875_{key}": head for key, head in heads.items()}),
        ),
        tuple(rows),
        (
            "Around the deltas of the deepest fork per pair, the ones that give the published points. "
            "Percentile intervals; "
            "the published resampling is not in the release, so the last digits need not agree and are not "
            "compared.",
            _closer_note(offs),
        ),
    )


def paper_at_zero(release: Release, bucket: Bucket) -> Table:
    """Share of branches that differ at the fork decision itself."""
    rows = []
    for name in paper.CELLS:
        got = paper.figures(release.cell(*name, bucket))
        rows.append((*map(label, name), *_maybe_printed(paper.AT_ZERO.get(name), rate(got.at_zero, got.n))))
    swaps = paper.figures([r for r in release.branches if r.arm == "swap"])
    total = _compared_rate(paper.AT_ZERO_ALL_SWAPS, rate(swaps.at_zero, swaps.n))
    rows.append((label("all"), label("swap"), label("all"), *total))
    return Table(
        "at_zero",
        f"Branches that differ at the fork decision, published | recomputed · early/late by {bucket}",
        (*_CELL, *_both({"at_zero": "% at action 0"})),
        tuple(rows),
        (
            "Not shown: how often one model differs from itself at that decision by sampling alone, beyond "
            "the one control.",
        ),
    )


def paper_log_stitch(release: Release, bucket: Bucket) -> Table:
    """Log-stitched replay: what of its published score the release can show."""
    rows = []
    for (direction, depth), printed in paper.STITCH.items():
        got = paper.log_stitch(release, direction, depth, bucket=bucket)
        rows.append(
            (
                label(direction),
                label(depth),
                *_compared(printed.n, count(got.n)),
                *(c for text in (printed.agreement, printed.missed, printed.false_successes) for c in _graded(text)),
                *_compared(printed.either, count(got.either)),
                *_compared(printed.similarity, number(got.similarity, why="no pair with a patch")),
            )
        )
    groups = {"n": "n", "agreement": "outcome agrees", "missed": "missed", "false": "false"}
    return Table(
        "log_stitch",
        f"Log-stitched replay of swap branches, published | recomputed · early/late by {bucket}",
        (*_WHERE, *_both(groups | {"either": "patch n", "similarity": "similarity"})),
        tuple(rows),
        (
            "The target's own base on the instance predicts the branch, whatever the fork step. missed, "
            "false: successes not "
            "predicted, predicted and not had. similarity: of stripped patches, "
            "prediction first, over the patch n pairs in which either has one; that denominator depends on "
            "the arm, so arms do not compare by it.",
            "Not shown: whether replay gets the outcome right.",
        ),
    )


def paper_exits(release: Release) -> Table:
    """How the bases ended, per run."""
    rows = []
    for key, printed in paper.EXITS.items():
        got = paper.exit_counts(release, paper.RUNS[key])
        cells = [
            c for status, n in zip(paper.STATUSES, printed, strict=True) for c in _compared(str(n), count(got[status]))
        ]
        other = count(got.total() - sum(got[status] for status in paper.STATUSES))
        rows.append((*map(label, (*key, paper.RUNS[key])), count(got.total()), *cells, other))
    groups = dict(zip(paper.STATUSES, ("Submitted", "LimitsExc", "ContextWin", "FormatErr"), strict=True))
    before = (*_PAIR, Column("run", "run", is_label=True), Column("bases", "bases"))
    return Table(
        "exits",
        "How the bases ended, published | recomputed · per run",
        (*before, *_both(groups), Column("other", "other")),
        tuple(rows),
        (
            "Submitted, LimitsExceeded, ContextWindowExceededError, RepeatedFormatError. Bases are forked "
            "whatever their exit.",
            "Not shown: calls lost to format errors; the release counts assistant turns only.",
        ),
    )


def paper_fidelity(release: Release) -> Table:
    """Prefix re-execution: return codes, as far as the release holds them."""
    rows = []
    for key, printed in paper.FIDELITY.items():
        rows.append(_fidelity_row(key, printed, [r for r in release.branches if (r.direction, r.tier) == key]))
    rows.append(_fidelity_row(("all", "all"), paper.FIDELITY_ALL, release.branches))
    whole = paper.fidelity(release.branches)
    return Table(
        "fidelity",
        "Prefix re-execution, published | recomputed",
        (
            *_PAIR,
            *_both({"branches": "branches", "actions": "actions", "codes": "codes match", "exact": "exact"}),
            Column("turns", "turns"),
        ),
        tuple(rows),
        (
            "branches: those with a mismatch count (replay_mismatches) and a prefix to re-execute (k > 1). "
            "turns: assistant turns of "
            "their prefixes. exact: no return code differs in the whole prefix. actions: turns, where no "
            "base of the row ran more than one a turn.",
            f"Left out: {whole.unrecorded} branches without a mismatch count, {whole.without_prefix} forked at turn 1.",
            "Not shown: output and state; a prefix with equal return codes may still differ in both.",
        ),
    )


def _fidelity_row(key: tuple[str, str], printed: paper.PrintedFidelity, rows: Sequence[BranchRow]) -> tuple[Cell, ...]:
    got = paper.fidelity(rows)
    return (
        *map(label, key),
        *_compared(printed.branches, count(got.checked)),
        *_compared(printed.actions, absent(_NO_PREFIX) if got.actions is None else count(got.actions)),
        *_compared_rate(printed.codes, _codes(got), 2),
        *_compared_rate(printed.exact, rate(got.checked - got.mismatched, got.checked)),
        count(got.turns),
    )


def _codes(got: paper.FidelityFigures) -> Cell:
    if got.actions is not None:
        return rate(got.actions - got.mismatches, got.actions, 2)
    if got.checked and not got.mismatches:
        return Cell("all (100%)", 1.0, note="no mismatch recorded, so all match whatever the number of actions")
    least = percent(1 - got.mismatches / got.turns, 2) if got.turns else "0"
    return absent(f"not derivable without the number of actions: {got.mismatches} mismatch(es), so at least {least}%")


def paper_other(release: Release) -> Table:
    """The remaining printed figures; those that need the grading or the prefixes are absent."""
    printed, tokens = paper.OTHER, paper.base_tokens(release)
    lines: list[tuple[str, tuple[Cell, Cell]]] = [
        *(_limit_hits(release, direction) for direction in paper.DIRECTIONS),
        ("mean prompt tokens a base", _thousands(printed["prompt_tokens"], tokens.prompt, 0)),
        ("mean completion tokens a base", _thousands(printed["completion_tokens"], tokens.completion, 1)),
        *(_own_control(release, direction) for direction in paper.DIRECTIONS),
        ("mean prefix actions a branch", (_printed(printed["prefix_actions"]), absent(_NO_PREFIX))),
        *((what, _graded(printed[key])) for key, what in _GRADED.items()),
    ]
    return Table(
        "other",
        "Other printed figures, published | recomputed",
        (Column("quantity", "quantity", is_label=True), *_both({"figure": "figure"})),
        tuple((label(what), *cells) for what, cells in lines),
        ("A model's own base is a reference for its control, not a ceiling: it is one draw against another.",),
    )


def _limit_hits(release: Release, direction: paper.Direction) -> tuple[str, tuple[Cell, Cell]]:
    got = paper.exit_counts(release, paper.RUNS[direction, "full"])
    hit = rate(got["LimitsExceeded"], got.total())
    cells = _compared(paper.OTHER[f"limit_full_{direction}"], hit, shown=hit.text.partition(" ")[0])
    return f"full-tier bases at the call limit, {_BASE_MODEL[direction]}", cells


def _own_control(release: Release, direction: paper.Direction) -> tuple[str, tuple[Cell, Cell]]:
    got = paper.self_reference(release, direction)
    what = f"base-control patch similarity, {_BASE_MODEL[direction]}, {got.either} of {got.n} with patch"
    return what, _compared(paper.SELF_REFERENCE[direction], number(got.similarity, 2))


_BASE_MODEL: Mapping[paper.Direction, str] = {"up": "4B", "down": "14B"}
_GRADED = {
    "flips_swap": "outcome flips, swap arms",
    "flips_control": "outcome flips, control arms",
    "resolution": "bases resolved",
    "decisive": "flips that log-stitch calls",
    "always_fail": "flips that always-fail calls",
}


def paper_warnings(release: Release) -> Table:
    """Rows that fit no fork point of the stored base, and what else a reader must know before using the
    release.
    """
    stale, odd = paper.stale_rows(release), len(paper.inconsistent_rows(release))
    heads = {"arm": "arm", "rank": "rank", "released": "released", "fork_step": "k", "turns": "base turns"}
    notes = [
        "Their base was run again and overwritten (G23). They stay in every table, as in the paper. The rank "
        "rule calls the "
        "smallest step of (run, instance, alias) early, so a stale step can make a true 30% fork late.",
        _overlap_note(release) + " Rows of one instance are one cluster.",
    ]
    if release.unscored:
        notes.append(f"{release.unscored} branches of summary.json have no divergence row and are in no table.")
    if odd:
        notes.append(f"{odd} rows have a normalised distance that is not their own edit count over the longer list.")
    return Table(
        "warnings",
        f"Stale branches: {len(stale)} of {len(release.branches)} sit at no 30/70% point of the stored base",
        (
            *(Column(name, name, is_label=True) for name in ("run", "instance")),
            *_under("", heads | {"points": "30/70%", "kind": "kind"}),
        ),
        tuple(map(_stale, stale)),
        tuple(notes),
    )


def _stale(row: BranchRow) -> tuple[Cell, ...]:
    names = (row.base.run, row.instance, row.arm, row.rank_depth, row.released_depth)
    points = label("/".join(map(str, row.points)))
    return (*map(label, names), count(row.fork_step), count(row.base.turns), points, label(row.parted.kind))


def paper_summary(tables: Sequence[Table]) -> Table:
    """How many published numbers come out equal as printed, per table."""
    rows = []
    for table in tables:
        cells = [pair for row in table.rows for pair in _published_pairs(table, row)]
        if cells:
            sums = [sum(c.differs is d and c.value is not None for c in cells) for d in (False, True)]
            rows.append(
                (
                    label(table.name),
                    count(len(cells)),
                    *map(count, sums),
                    count(sum(c.value is None for c in cells)),
                )
            )
    totals = [sum(int(row[i].text) for row in rows) for i in range(1, 5)]
    heads = ("numbers", "equal", "differ", "not derivable")
    return Table(
        "summary",
        f"Published numbers: {totals[1]} of {totals[0]} equal as printed, {totals[2]} differ, {totals[3]} "
        "not derivable",
        (Column("table", "table", is_label=True), *(Column(h.replace(" ", "_"), h) for h in heads)),
        (*rows, (label("all"), *map(count, totals))),
        ("Bootstrap intervals are not counted: resampling differs.",),
    )


def _published_pairs(table: Table, row: Sequence[Cell]) -> Iterator[Cell]:
    keys = {c.key for c in table.columns}
    for column, cell, left in zip(table.columns, row, (None, *row), strict=False):
        if f"{column.key}_published" in keys and left is not None and left.value is not None:
            yield cell


# ------------------------------------------------------------------------------ pieces of the paper's tables

_TOO_FEW = "fewer than two to draw from"


def _under(group: str, headings: Mapping[str, str]) -> Iterator[Column]:
    """Columns from key -> heading, under one group heading."""
    return (Column(key, heading, group) for key, heading in headings.items())


def _both(groups: Mapping[str, str]) -> Iterator[Column]:
    """A published and a recomputed column from key -> group heading."""
    for key, group in groups.items():
        yield from _under(group, {f"{key}_published": "publ", key: "rec"})


def _compared(published: str, got: Cell, reason: str = "", *, shown: str | None = None) -> tuple[Cell, Cell]:
    """The published cell and the recomputed one, marked when what is printed differs; `shown` where the cell
    says more.
    """
    if got.value is None:
        return _printed(published), got
    differs = (got.text if shown is None else shown) != published
    return _printed(published), replace(
        got, differs=differs, note=_why(published, got, reason) if differs else got.note
    )


def _why(published: str, got: Cell, reason: str) -> str:
    digits = len(published.partition(".")[2])
    twice = isinstance(got.value, float) and rounded_twice(got.value, digits) == published
    reason = reason or (f"rounding twice gives it ({got.value:.{digits + 2}f})" if twice else "")
    return f"{_DIFFERS}: {reason}" if reason else _DIFFERS


def _compared_rate(published: str, got: Cell, digits: int = 1) -> tuple[Cell, Cell]:
    """As above for per cent; both values are shares."""
    left = replace(_printed(published), value=round(float(published) / 100, 6))
    if not isinstance(got.value, float):
        return left, got
    whole = got.value == 1 and published == "100"
    return left, _compared(published, got, shown="100" if whole else percent(got.value, digits))[1]


def _maybe_printed(published: str | None, got: Cell) -> tuple[Cell, Cell]:
    return (absent("no published figure known"), got) if published is None else _compared_rate(published, got)


def _graded(published: str) -> tuple[Cell, Cell]:
    return _printed(published), absent(_NO_OUTCOME)


def _printed(text: str) -> Cell:
    try:
        return Cell(text, int(text) if text.isdigit() else float(text))
    except ValueError:
        return label(text)


def _percent(share: float | None) -> Cell:
    return absent("no rows") if share is None else Cell(percent(share), share)


def _thousands(published: str, value: float | None, digits: int) -> tuple[Cell, Cell]:
    got = absent("no bases") if value is None else Cell(f"{value / 1000:.{digits}f}k", value)
    return _compared(published, got)


class _Ends(NamedTuple):
    wide: Bounds
    """95 %."""
    lower: float
    """Lower end at 98.75 %."""


def _ends(deltas: paper.PairedDeltas, unit: paper.Unit, rng: np.random.Generator, resamples: int) -> _Ends | None:
    try:
        means = paper.bootstrap(deltas, unit, rng, resamples)
    except ValueError:
        return None
    return _Ends(paper.percentile_interval(means, 0.95), paper.percentile_interval(means, 0.9875).low)


def _off(printed: paper.PrintedDelta, got: _Ends) -> list[float]:
    """Distances of the three recomputed ends from the published ones."""
    want = [*printed.interval.strip("[]").split(", "), printed.bonferroni]
    return [abs(float(a) - b) for a, b in zip(want, (*got.wide, got.lower), strict=True)]


def _closer_note(offs: Mapping[paper.Unit, Sequence[float]]) -> str:
    if not all(offs.values()):
        return "Too few rows to say how the paper resampled."
    mean = {unit: sum(off) / len(off) for unit, off in offs.items()}
    closer = min(mean, key=lambda unit: mean[unit])
    return (
        f"Mean distance from the published ends: {mean['pair']:.4f} drawing pairs, {mean['instance']:.4f} "
        "drawing instances; so "
        f"the paper most likely drew {closer}s. Pairs of one instance are not independent: by instance is "
        "the one to quote."
    )


def _size(release: Release) -> str:
    return f"{len(release.branches)} branches, {len({r.instance for r in release.branches})} instances"


def _overlap_note(release: Release) -> str:
    shared = [(d, paper.overlap(release, d)) for d in paper.DIRECTIONS]
    unique = len({r.instance for r in release.branches})
    each = "; ".join(
        f"{d}: {o.unique}, of which easy and nudge share {o.easy_and_nudge}, full and these {o.full_and_other}"
        for d, o in shared
    )
    return f"{unique} unique instances in all ({each})."


def _extension_note(release: Release) -> str:
    extended = [r for r in release.branches if r.parted.kind == "extended"]
    other = sum(r.base.exit_status != "LimitsExceeded" for r in extended)
    return (
        "A branch restarts with its prefix's format errors refunded, so it can outrun a base that met the "
        "call limit: "
        f"{len(extended)} branches are extended, {other} of them on a base that stopped otherwise and no "
        "budget artefact."
    )


def _several_forks(release: Release, direction: paper.Direction, depth: paper.Depth, bucket: Bucket) -> str:
    rows = [r for r in release.branches if r.direction == direction and r.depth(bucket) == depth]
    steps: dict[tuple[str, str], set[int]] = {}
    for r in rows:
        steps.setdefault((r.tier, r.instance), set()).add(r.fork_step)
    several = [pair for pair, ks in steps.items() if len(ks) > 1]
    names = ", ".join(f"{instance} ({tier})" for tier, instance in several)
    stale = {(r.tier, r.instance) for r in paper.stale_rows(release)}
    because = "stale rows (G23)" if stale.issuperset(several) else "several forks"
    return f"{because} give {names} more than one {depth} fork; the deepest alone gives the published number"
