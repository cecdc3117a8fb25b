"""Grades what a rollout left behind: start commit + its diff or submission + hidden tests, in a sandbox of its own."""

from typing import Literal

from harness.errors import ScoringError, attribute
from harness.record import Outcome, Reason, Task
from harness.sandbox.protocol import SandboxProvider
from harness.tasks.protocol import TaskSet

Graded = Literal["submission", "working_tree"]


def what_is_graded(of: Graded, submission: str | None, patch: bytes) -> bytes | None:
    """The patch that grading is of; None when it is of a submission and there is none."""
    if of == "working_tree":
        return patch
    return None if submission is None else submission.encode("utf-8")


def score(task: Task, patch: bytes | None, tasks: TaskSet, provider: SandboxProvider) -> Outcome:
    """The outcome of `patch`. A fresh sandbox: nothing that an agent did to its own can reach the grading.

    Raises ScoringError, or SandboxError, when grading could not be carried out: that is no outcome.
    """
    if patch is None:
        return Outcome(status="unresolved", reason=Reason.NO_SUBMISSION, detail="no submission")
    if not patch.strip():
        return Outcome(status="unresolved", reason=Reason.EMPTY_PATCH, detail="empty patch")
    with attribute(ScoringError, f"grading {task.instance_id}"), provider.start(tasks.grading_image(task)) as sandbox:
        return tasks.grade(task, patch, sandbox)
