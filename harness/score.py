"""Grades what a rollout left behind: start commit + its diff + hidden tests, in a sandbox of its own."""

from harness.errors import ScoringError, attribute
from harness.record import Outcome, Task
from harness.sandbox.protocol import SandboxProvider
from harness.tasks.protocol import TaskSet


def score(task: Task, patch: bytes, tasks: TaskSet, provider: SandboxProvider) -> Outcome:
    """The outcome of `patch`. A fresh sandbox: nothing that an agent did to its own can reach the grading."""
    if not patch.strip():
        return Outcome(status="unresolved", detail="empty patch")
    with attribute(ScoringError, f"grading {task.instance_id}"), provider.start(tasks.image(task)) as sandbox:
        return tasks.grade(task, patch, sandbox)
