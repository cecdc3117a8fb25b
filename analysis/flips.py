"""Base-anchored outcome flips (G16): descriptive, for conformance with the paper.

P(swap flips) - P(control flips) = (1 - 2 p_c)(p_s - p_c): a flip rate says little about a swap's effect (estimands
M11); tau, gains and losses in `effects` do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.load import BranchRow


@dataclass(frozen=True)
class Flips:
    """Counts over branches whose own outcome and whose base's outcome were graded."""

    graded: int
    gained: int
    """Base unresolved, branch resolved."""
    lost: int
    """Base resolved, branch unresolved."""


def count_flips(rows: Sequence[BranchRow]) -> Flips:
    """Flips among `rows`."""
    graded = [row for row in rows if row.resolved is not None and row.base_resolved is not None]
    gained = sum(bool(row.resolved) and not row.base_resolved for row in graded)
    lost = sum(bool(row.base_resolved) and not row.resolved for row in graded)
    return Flips(len(graded), gained, lost)
