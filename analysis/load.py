"""From a run folder to typed rows. With `paper.load_release`, the only door to disk.

A branch is bound to the digest of its prefix. One whose digest does not match the stored base is stale: it is kept
out of every table and named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.journal import Records, RunFolder
from harness.record import Branch, Failure, Step, Stop, Trajectory, commands, prefix_digest


@dataclass(frozen=True)
class BranchRow:
    """A branch beside the part of its base that it replaces."""

    base: Trajectory
    branch: Branch

    @property
    def cluster(self) -> str:
        """The instance: rows of one instance are not independent."""
        return self.branch.task_id

    @property
    def arm(self) -> str:
        return self.branch.arm.name

    @property
    def base_actions(self) -> list[str]:
        """Commands of the base from the fork on."""
        return commands(self.base.steps[self.branch.fork.step - 1 :])

    @property
    def actions(self) -> list[str]:
        """Commands of the branch from the fork on."""
        return commands(self.branch.steps)

    @property
    def calls(self) -> list[str]:
        """One string a model call of the branch, format errors included: the unit of horizons (M7, M20)."""
        return [call_label(step) for step in self.branch.steps]

    @property
    def base_calls(self) -> list[str]:
        """The same of the base from the fork on."""
        return [call_label(step) for step in self.base.steps[self.branch.fork.step - 1 :]]

    @property
    def patch(self) -> str:
        """The branch's diff; U+FFFD for bytes that are not UTF-8."""
        return self.branch.ending.patch.decode("utf-8", "replace")

    @property
    def base_patch(self) -> str:
        """The base's diff, likewise."""
        return self.base.ending.patch.decode("utf-8", "replace")

    @property
    def stop(self) -> Stop:
        return self.branch.ending.stop

    @property
    def resolved(self) -> bool | None:
        """None when the branch could not be graded."""
        return resolved(self.branch)

    @property
    def base_resolved(self) -> bool | None:
        """None when the base could not be graded."""
        return resolved(self.base)


def call_label(step: Step) -> str:
    """What one model call did, as one string that two calls share only when they did the same."""
    if step.reply.format_error is not None:
        return "format error\0" + step.reply.text
    return "\0".join(action.command for action in step.reply.actions)


def resolved(record: Trajectory | Branch) -> bool | None:
    """True, False, or None when it was not measured."""
    return {"resolved": True, "unresolved": False, "unscored": None}[record.ending.outcome.status]


@dataclass(frozen=True)
class ForkKey:
    """One fork in one direction."""

    task_id: str
    direction: str
    step: int


@dataclass(frozen=True)
class Run:
    """Everything that analysis needs of a run."""

    name: str
    manifest: Mapping[str, Any]
    bases: Mapping[str, Trajectory]
    rows: tuple[BranchRow, ...]
    failures: tuple[Failure, ...]
    stale: tuple[str, ...]
    """Ids of branches whose prefix is not the stored base's, or whose base is missing."""

    def forks(self) -> dict[ForkKey, list[BranchRow]]:
        """Rows by fork, in order of id."""
        found: dict[ForkKey, list[BranchRow]] = {}
        for row in self.rows:
            key = ForkKey(row.branch.task_id, row.branch.direction, row.branch.fork.step)
            found.setdefault(key, []).append(row)
        return found

    @property
    def lost(self) -> list[str]:
        """Ids of cells with failures and no record."""
        finished = self.bases.keys() | {row.branch.id for row in self.rows}
        return sorted({failure.id for failure in self.failures} - finished)


def load_run(path: Path) -> Run:
    """The run in folder `path`."""
    folder = RunFolder(path).require()
    manifest, records = folder.manifest(), folder.records()
    digests: dict[tuple[str, int], str] = {}
    rows, stale = [], []
    for branch in sorted(records.branches.values(), key=lambda branch: branch.id):
        if _is_bound(branch, records, digests):
            rows.append(BranchRow(records.bases[branch.fork.base_id], branch))
        else:
            stale.append(branch.id)
    return Run(
        name=str(manifest.get("study", path.name)),
        manifest=manifest,
        bases=records.bases,
        rows=tuple(rows),
        failures=tuple(records.failures),
        stale=tuple(stale),
    )


def _is_bound(branch: Branch, records: Records, digests: dict[tuple[str, int], str]) -> bool:
    base = records.bases.get(branch.fork.base_id)
    if base is None:
        return False
    key = (base.id, branch.fork.step)
    if key not in digests:  # once a fork: its branches share the prefix
        digests[key] = prefix_digest(base, branch.fork.step)
    return digests[key] == branch.fork.prefix_digest


def instances(rows: Sequence[BranchRow]) -> int:
    """Number of distinct instances among `rows`."""
    return len({row.cluster for row in rows})
