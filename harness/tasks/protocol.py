"""What every task set does: name its tasks, give the start state of each, and grade a patch."""

from collections.abc import Sequence
from typing import Protocol

from harness.record import Outcome, Task
from harness.sandbox.protocol import Image, Sandbox


class TaskSet(Protocol):
    """A set of tasks."""

    name: str

    def tasks(self) -> Sequence[Task]:
        """All tasks, in a stable order."""
        ...

    def image(self, task: Task) -> Image:
        """The start state of `task`'s sandbox, made on first use."""
        ...

    def grade(self, task: Task, patch: bytes, sandbox: Sandbox) -> Outcome:
        """Apply `patch` in a fresh `sandbox` of the task and run its hidden tests."""
        ...
