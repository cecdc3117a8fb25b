"""Removes what dead drivers left behind: sandbox folders, control groups, containers. Never anything else.

Everything that a driver makes outside its run's records bears its process id, in a name or a label. It is removed
when that process is gone, or when the id has gone to a process that started later than the thing was made. A driver
that lives keeps all that is its own, whoever calls this.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.sandbox.spawner import remove_tree

_FOLDER = re.compile(r"^forkroll-[a-z]+-(\d+)-")
_GROUP = re.compile(r"^forkroll-(\d+)-")
_CLOCK_SLACK_S = 2.0
"""Process start times are counted in clock ticks since boot, file times on the wall clock."""


@dataclass(frozen=True)
class Reaped:
    """One thing that was removed."""

    kind: str
    name: str


def clean(runs: Iterable[Path], *, only: Path | None = None, containers: bool = True) -> list[Reaped]:
    """Reap in the sandbox folders of `runs`, among control groups, and among containers.

    With `only`, containers of that run alone; control groups bear no run and are left to a call without it.
    Looking for containers imports the Docker SDK; a caller that knows of none can do without.
    """
    found = [reaped for run in runs for reaped in _folders(run / "sandboxes")]
    if only is None:
        found += _groups()
    return found + (_containers(only) if containers else [])


def owner_lives(pid: int, made_at: float) -> bool:
    """True unless process `pid` is gone or started after `made_at` (seconds since the epoch)."""
    started = _started(pid)
    return started is not None and started <= made_at + _CLOCK_SLACK_S


def _started(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, StopIteration):
        return None
    return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _folders(scratch: Path) -> Iterator[Reaped]:
    for folder in sorted(scratch.glob("forkroll-*-*")):
        match = _FOLDER.match(folder.name)
        if match and folder.is_dir() and not owner_lives(int(match[1]), folder.stat().st_ctime):
            remove_tree(str(folder))
            yield Reaped("folder", str(folder))


def _groups() -> Iterator[Reaped]:
    from harness.sandbox.namespace import memory_groups

    parent = memory_groups()
    for group in sorted(parent.glob("forkroll-*-*")) if parent is not None else ():
        match = _GROUP.match(group.name)
        if match and not owner_lives(int(match[1]), group.stat().st_ctime):
            with contextlib.suppress(OSError):  # something still runs in it
                group.rmdir()
                yield Reaped("control group", group.name)


def _containers(only: Path | None) -> list[Reaped]:
    from harness.sandbox.docker import reap_containers

    return [Reaped("container", name) for name in reap_containers(None if only is None else str(only.absolute()))]
