"""How often grading the same patch twice gives two outcomes (estimands M12).

Over cells whose hidden tests were run and that were graded again. Each counts with one over its inclusion
probability; the ratio of weighted sums (Hajek's) is over all tested cells of the run. The share of cells whose
gradings differ grows with their number; the share of pairs of gradings that differ does not, and is what to quote.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.table import Cell, Column, Table, absent, count, label, number, rate
from harness.journal import Records
from harness.record import Branch, Regrade, Trajectory


@dataclass(frozen=True)
class GradedCell:
    """All gradings of one cell."""

    cell_id: str
    resolved: tuple[bool, ...]
    """The cell's own outcome first."""
    inclusion: float

    @property
    def differs(self) -> bool:
        """Its gradings are not all the same."""
        return len(set(self.resolved)) > 1

    @property
    def pairs_differ(self) -> float:
        """Share of its pairs of gradings that differ: unbiased for the chance that two do."""
        n, k = len(self.resolved), sum(self.resolved)
        return 2 * k * (n - k) / (n * (n - 1))


def graded_cells(records: Records) -> list[GradedCell]:
    """Cells that were graded again, by id."""
    again: dict[str, list[Regrade]] = {}
    for regrade in records.regrades.values():
        again.setdefault(regrade.cell_id, []).append(regrade)
    return [
        GradedCell(cell_id, (_own(records, cell_id), *map(_resolved, _in_order(more))), more[0].inclusion)
        for cell_id, more in sorted(again.items())
    ]


def _own(records: Records, cell_id: str) -> bool:
    record = records.bases.get(cell_id) or records.branches[cell_id]
    return record.ending.outcome.status == "resolved"


def _resolved(regrade: Regrade) -> bool:
    return regrade.outcome.status == "resolved"


def _in_order(regrades: Iterable[Regrade]) -> list[Regrade]:
    return sorted(regrades, key=lambda regrade: regrade.number)


def weighted_share(cells: Sequence[GradedCell], values: Sequence[float]) -> float | None:
    """Mean of `values` (one a cell) with weight 1 / inclusion; None without cells."""
    weights = [1 / cell.inclusion for cell in cells]
    if not weights:
        return None
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def flake_table(records: Records, name: str) -> Table:
    """The flake rate with all that it rests on."""
    cells = graded_cells(records)
    finished: list[Trajectory | Branch] = [*records.bases.values(), *records.branches.values()]
    tested = [one for one in finished if one.ending.outcome.reason is not None and one.ending.outcome.reason.tested]
    failed = {one.id for one in records.failures if one.id.rpartition("~")[0] in records.finished()}
    none = "no cell was graded again"
    blind = _blind(records, cells, len(tested))
    pairs = None if blind else weighted_share(cells, [cell.pairs_differ for cell in cells])
    differing = None if blind else weighted_share(cells, [float(cell.differs) for cell in cells])
    facts: list[tuple[str, Cell]] = [
        ("finished cells", count(len(finished))),
        ("of these, hidden tests were run", count(len(tested))),
        ("graded again", count(len(cells))),
        ("chosen with certainty / by the sample", _chosen(cells, none)),
        ("gradings of them, the first included", count(sum(len(cell.resolved) for cell in cells))),
        ("cells whose gradings differ", rate(sum(cell.differs for cell in cells), len(cells), why=none)),
        ("the same, weighted", number(differing, why=blind or none)),
        ("flake rate: two gradings differ, weighted", number(pairs, why=blind or none)),
        ("gradings lost to infrastructure", count(len(failed - set(records.regrades)))),
    ]
    return Table(
        "flakes",
        f"grading measured · {name} · the same patch graded again",
        (Column("fact", "fact", is_label=True), Column("value", "value")),
        tuple((label(fact), cell) for fact, cell in facts),
        tuple(f"gradings differ: {cell.cell_id}: {_told(cell)}" for cell in cells if cell.differs),
    )


def _blind(records: Records, cells: Sequence[GradedCell], tested: int) -> str:
    """Why no rate over all tested cells can be told; empty where one can."""
    sampled = any(regrade.sample < 1 for regrade in records.regrades.values())
    if not sampled or tested == len(cells) or any(cell.inclusion < 1 for cell in cells):
        return ""
    return f"the sample holds none of the {tested - len(cells)} cells whose outcomes agree: take a larger one"


def _chosen(cells: Sequence[GradedCell], none: str) -> Cell:
    certain = sum(cell.inclusion == 1 for cell in cells)
    return label(f"{certain} / {len(cells) - certain}") if cells else absent(none)


def _told(cell: GradedCell) -> str:
    return f"{sum(cell.resolved)} of {len(cell.resolved)} resolved"
