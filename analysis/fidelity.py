"""Whether re-executing a prefix brought the sandbox back to where the base had been, at three levels.

Counts of actions hide how many branches are touched, so the number of branches with any mismatch stands beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.load import BranchRow


@dataclass(frozen=True)
class Fidelity:
    """Sums over branches; each pair is (equal, compared)."""

    exit_codes: tuple[int, int]
    outputs: tuple[int, int]
    states: tuple[int, int]
    clean_branches: tuple[int, int]
    """Branches without any mismatch."""


def prefix_fidelity(rows: Sequence[BranchRow]) -> Fidelity:
    """Fidelity of the prefixes of `rows`."""
    checks = [row.branch.prefix for row in rows]
    actions = sum(check.actions for check in checks)
    return Fidelity(
        exit_codes=(sum(check.exit_codes_equal for check in checks), actions),
        outputs=(sum(check.outputs_equal for check in checks), actions),
        states=(sum(check.states_equal for check in checks), sum(check.states for check in checks)),
        clean_branches=(sum(check.first_mismatch is None for check in checks), len(checks)),
    )
