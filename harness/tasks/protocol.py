"""What every task set does: name its tasks, give the start state of each, and grade a patch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.record import Outcome, Task
from harness.sandbox.protocol import Image, Sandbox


@dataclass(frozen=True)
class History:
    """What an image's repository holds beyond the commit that its task starts from."""

    ahead: int = 0
    """Commits from the base commit to HEAD."""
    future: int = 0
    """Commits, reachable or not, that lie on no way from HEAD and are newer than the base commit."""
    examples: tuple[str, ...] = ()
    """A few of them: short hash and date."""
    problem: str | None = None
    """Why neither number is known; None when they are."""

    @property
    def reaches_past_base(self) -> bool:
        """An agent could read there what came after its task, or nobody knows.

        One commit ahead is the image's own: swebench puts its changes to the environment there.
        """
        return self.problem is not None or self.ahead > 1 or self.future > 0

    def line(self, task_id: str) -> str:
        """What to tell a person."""
        if self.problem is not None:
            return f"{task_id}: {self.problem}"
        some = f" (such as {', '.join(self.examples)})" if self.examples else ""
        ahead = f"HEAD is {self.ahead} commits past the base commit" if self.ahead > 1 else ""
        future = f"{self.future} newer commits can be read in its repository{some}" if self.future else ""
        return f"{task_id}: git history reaches past the base commit: {'; '.join(filter(None, (ahead, future)))}"


class TaskSet(Protocol):
    """A set of tasks. Threads may share it."""

    name: str

    def tasks(self) -> Sequence[Task]:
        """All tasks, in a stable order."""
        ...

    def require(self, tasks: Sequence[Task]) -> None:
        """ConfigError when one of `tasks` could not be graded here, whatever a rollout left behind."""
        ...

    def image(self, task: Task) -> Image:
        """The start state of `task`'s sandbox, made on first use."""
        ...

    def grading_image(self, task: Task) -> Image:
        """The start state of the sandbox that `task` is graded in: the same tree."""
        ...

    def grade(self, task: Task, patch: bytes, sandbox: Sandbox) -> Outcome:
        """Apply `patch` in a fresh `sandbox` of the task and run its hidden tests."""
        ...

    def history_of(self, task: Task, sandbox: Sandbox) -> History | None:
        """What a fresh sandbox's repository holds beyond the start commit; None where that cannot be anything."""
        ...

    def facts(self) -> Mapping[str, str]:
        """What a manifest should say: versions of what grades."""
        ...

    def close(self) -> None:
        """End what was started for grading."""
        ...
