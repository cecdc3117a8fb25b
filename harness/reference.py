"""Grades each task's reference patch where a study grades: what does not resolve there, no model can resolve there.

Shows a missing network, a limit that is too tight or an image that has moved before a sweep is paid for.
"""

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.assemble import open_graders, open_tasks, select_tasks
from harness.config import Study
from harness.errors import RolloutError
from harness.record import Outcome, Task
from harness.sandbox.protocol import SandboxProvider
from harness.score import score
from harness.tasks.protocol import TaskSet


@dataclass(frozen=True)
class Reference:
    """What grading a task's reference patch gave."""

    task: Task
    outcome: Outcome | None
    """None: it could not be carried out, and `failure` says why."""
    failure: str | None = None

    @property
    def resolves(self) -> bool:
        """As it must."""
        return self.outcome is not None and self.outcome.status == "resolved"


def check_references(study: Study, *, allow_unsandboxed: bool, say: Callable[[str], None]) -> list[Reference]:
    """Grade the reference patches of the study's tasks, in its order. Nothing is recorded."""
    tasks = open_tasks(study)
    chosen = select_tasks(study, tasks)
    with closing(tasks):
        tasks.require(chosen)
        with _graders(study, allow_unsandboxed, say) as provider, ThreadPoolExecutor(study.workers) as workers:
            return list(workers.map(partial(_check, tasks=tasks, provider=provider), chosen))


@contextmanager
def _graders(study: Study, allow_unsandboxed: bool, say: Callable[[str], None]) -> Iterator[SandboxProvider]:
    with (
        tempfile.TemporaryDirectory(prefix="forkroll-") as folder,
        open_graders(study, Path(folder) / "sandboxes", allow_unsandboxed=allow_unsandboxed) as sandboxes,
    ):
        for note in sandboxes.degraded:
            say(f"note: {note}")
        yield sandboxes.provider


def _check(task: Task, *, tasks: TaskSet, provider: SandboxProvider) -> Reference:
    try:
        return Reference(task, score(task, task.patch.encode("utf-8"), tasks, provider))
    except RolloutError as error:
        return Reference(task, None, f"{error.side}: {error}")
