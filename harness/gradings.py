"""Which finished cells are graded again, and how often. Pure: same records and design, same list.

Grading is measured like everything else (estimands M12). Grading only flips again would depend on the outcome and bias
flips down; so either every cell is graded again, or a random sample of them and, with certainty, all at forks where
outcomes differ. A cell's inclusion probability goes with every further grading, and its weight is one over it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.journal import Records
from harness.record import Branch, Task, Trajectory, seed_for
from harness.score import what_is_graded


@dataclass(frozen=True)
class Design:
    """How cells are chosen. One run has one design."""

    sample: float = 1.0
    """Probability of a cell at a fork where all outcomes agree; 1: every cell is graded again."""
    seed: int = 0
    """Decides who is in the sample, each cell by itself: a larger sample holds a smaller one."""


@dataclass(frozen=True)
class GradeCell:
    """A further grading to be done."""

    id: str
    task: Task
    record: Trajectory | Branch
    number: int
    """1-based."""
    inclusion: float
    design: Design

    @property
    def patch(self) -> bytes | None:
        """What was graded."""
        ending = self.record.ending
        return what_is_graded(ending.graded, ending.submission, ending.patch)


def discordant(records: Records) -> frozenset[str]:
    """Ids of every base and branch of a fork whose outcomes, the base's included, are not all the same."""
    forks: dict[tuple[str, str, int], list[Branch]] = {}
    for branch in records.branches.values():
        forks.setdefault((branch.fork.base_id, branch.direction, branch.fork.step), []).append(branch)
    found: set[str] = set()
    for (base_id, _, _), branches in forks.items():
        cells = [branch.id for branch in branches] + [base_id] * (base_id in records.bases)
        if len({_cell(records, cell_id).ending.outcome.status for cell_id in cells}) > 1:
            found.update(cells)
    return frozenset(found)


def _cell(records: Records, cell_id: str) -> Trajectory | Branch:
    return records.bases.get(cell_id) or records.branches[cell_id]


def plan_gradings(records: Records, tasks: Sequence[Task], design: Design, times: int) -> list[GradeCell]:
    """Every further grading, `times` a chosen cell, those already done included.

    Cells whose hidden tests were never run (nothing submitted, or nothing that applies) are not among them: there is
    nothing in them that could come out otherwise. UsageError when the run was graded again by another design.
    """
    known = {task.instance_id: task for task in tasks}
    certain = discordant(records)
    planned = []
    for record in _tested(records):
        inclusion = 1.0 if record.id in certain else design.sample
        if seed_for(design.seed, "grade", record.id) < inclusion * 2**53:
            planned += [
                GradeCell(f"{record.id}~{number}", known[record.task_id], record, number, inclusion, design)
                for number in range(1, times + 1)
            ]
    _refuse_mixture(records, planned, design)
    return planned


def _tested(records: Records) -> Iterator[Trajectory | Branch]:
    finished: list[Trajectory | Branch] = [*records.bases.values(), *records.branches.values()]
    for record in finished:
        reason = record.ending.outcome.reason
        if reason is not None and reason.tested:
            yield record


def _refuse_mixture(records: Records, planned: Sequence[GradeCell], design: Design) -> None:
    """One design a run, and one inclusion probability a cell: else no weight would be right."""
    now = {cell.record.id: cell.inclusion for cell in planned}
    for done in records.regrades.values():
        if (done.sample, done.sample_seed) != (design.sample, design.seed):
            raise UsageError(
                f"this run was graded again with --sample {done.sample:g} --seed {done.sample_seed}: a run has one "
                "design; use the same, and --times for more gradings"
            )
        if now.get(done.cell_id) != done.inclusion:
            raise UsageError(
                f"{done.cell_id} was graded again with inclusion probability {done.inclusion:g}, and records that "
                "came since change it: grade again in a copy of the run without its gradings"
            )
