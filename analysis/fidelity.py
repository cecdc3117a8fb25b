"""Whether the way to a fork brought the sandbox back to where the base had been, at three levels.

A re-executed prefix is compared action by action: exit code, output (byte for byte, and normalised) and state. A
restored snapshot is compared by state alone. Counts of actions hide how many branches are touched, so the number of
branches with any mismatch stands beside them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.load import BranchRow
from harness.record import Step


@dataclass(frozen=True)
class Fidelity:
    """Sums over branches; each pair is (equal, compared)."""

    exit_codes: tuple[int, int]
    outputs: tuple[int, int]
    """Byte for byte."""
    normalised: tuple[int, int]
    """Outputs without what a clock, a process table or a random name puts there."""
    states: tuple[int, int]
    clean_branches: tuple[int, int]
    """Branches without any mismatch; outputs count normalised."""
    snapshots: tuple[int, int]
    """Snapshots that gave the state of the re-executed prefix; compared in mode `verify` only."""
    live_branches: tuple[int, int]
    """Branches forked beside a live process, which no way brings along for certain; of those whose base says."""
    by_snapshot: int
    """Branches that started from a snapshot."""
    requests: tuple[int, int]
    """Branches whose first request is the base's at the fork (messages, tools, sampling), of those that know both."""
    prompts: tuple[int, int]
    """Branches whose first prompt has the base's token ids at the fork, of those that know both and that the base's own
    model continues: a template may render a history otherwise the second time."""
    fell_back: Mapping[str, int]
    """Why a snapshot was asked for and not had, step numbers left out, with the number of branches."""


def prefix_fidelity(rows: Sequence[BranchRow]) -> Fidelity:
    """Fidelity of the prefixes of `rows`."""
    checks = [row.branch.prefix for row in rows]
    exits = sum(check.actions - check.exit_codes_unknown for check in checks)
    outputs = sum(check.actions - check.outputs_unknown for check in checks)
    verified = [check.snapshot_equal for check in checks if check.snapshot_equal is not None]
    live = [check.live_processes for check in checks if check.live_processes is not None]
    reasons = (re.sub(r"\bstep \d+", "step #", check.fell_back) for check in checks if check.fell_back is not None)
    return Fidelity(
        exit_codes=(sum(check.exit_codes_equal for check in checks), exits),
        outputs=(sum(check.outputs_equal for check in checks), outputs),
        normalised=(sum(check.normalised_equal for check in checks), outputs),
        states=(sum(check.states_equal for check in checks), sum(check.states for check in checks)),
        clean_branches=(sum(check.first_mismatch is None for check in checks), len(checks)),
        snapshots=(sum(verified), len(verified)),
        live_branches=(sum(map(bool, live)), len(live)),
        by_snapshot=sum(check.how == "snapshot" for check in checks),
        requests=_equal(map(_requests, rows)),
        prompts=_equal(map(_prompts, rows)),
        fell_back=dict(sorted(Counter(reasons).items())),
    )


def _at_the_fork(row: BranchRow) -> tuple[Step, Step] | None:
    """The step that the base took at the fork and the one that the branch took; None when one took none."""
    place = row.branch.fork.step - 1
    return (row.base.steps[place], row.branch.steps[0]) if row.branch.steps and place < len(row.base.steps) else None


Pair = tuple[str | None, str | None]


def _requests(row: BranchRow) -> Pair:
    steps = _at_the_fork(row)
    return (None, None) if steps is None else (steps[0].request_digest, steps[1].request_digest)


def _prompts(row: BranchRow) -> Pair:
    steps = _at_the_fork(row)
    if steps is None or steps[0].agent != steps[1].agent:
        return None, None
    return steps[0].circumstances.prompt_digest, steps[1].circumstances.prompt_digest


def _equal(pairs: Iterable[Pair]) -> tuple[int, int]:
    """(equal, compared) over the pairs of which both are known."""
    known = [one == other for one, other in pairs if one is not None and other is not None]
    return sum(known), len(known)
