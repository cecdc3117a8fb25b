"""The tasks of a study as a table: what they are, before anything is run."""

from collections.abc import Iterator, Sequence

from analysis.table import Cell, Column, Table, absent, count, label, rate
from harness.record import Outcome, Task

_COLUMNS = (
    Column("task", "task", is_label=True),
    Column("repo", "repo"),
    Column("difficulty", "difficulty"),
    Column("fail_to_pass", "fail-to-pass"),
    Column("pass_to_pass", "pass-to-pass"),
    Column("image", "image"),
)


Graded = tuple[Outcome | None, str | None]
"""What grading a reference patch gave; or None, and why it could not be carried out."""


def reference_table(tasks: Sequence[Task], graded: Sequence[Graded], name: str) -> Table:
    """What grading each task's reference patch gave."""
    outcomes = [outcome for outcome, _ in graded if outcome is not None]
    resolved = sum(outcome.status == "resolved" for outcome in outcomes)
    lost = f"; {len(tasks) - len(outcomes)} could not be graded" if len(outcomes) < len(tasks) else ""
    return Table(
        "references",
        f"reference patches · {name} · {resolved} of {len(outcomes)} graded resolve{lost}",
        (
            Column("task", "task", is_label=True),
            Column("outcome", "outcome"),
            Column("fail_to_pass", "fail-to-pass"),
            Column("pass_to_pass", "pass-to-pass"),
        ),
        tuple(_reference_row(task, *one) for task, one in zip(tasks, graded, strict=True)),
        tuple(_why_not(tasks, graded)),
    )


def _reference_row(task: Task, outcome: Outcome | None, failure: str | None) -> tuple[Cell, ...]:
    name = label(task.instance_id)
    if outcome is None:
        return (name, *[absent(f"not graded: {failure}")] * 3)
    untold = "no test was run"
    counts = [rate(*counted) if counted else absent(untold) for counted in (outcome.fail_to_pass, outcome.pass_to_pass)]
    return (name, label(str(outcome.reason or outcome.status)), *counts)


def _why_not(tasks: Sequence[Task], graded: Sequence[Graded]) -> Iterator[str]:
    for task, (outcome, _) in zip(tasks, graded, strict=True):
        if outcome is not None and outcome.detail:
            yield f"{task.instance_id}: {outcome.detail}"


def task_table(tasks: Sequence[Task], name: str) -> Table:
    """One row a task, in the study's order."""
    repos = len({task.repo for task in tasks})
    return Table(
        "tasks",
        f"tasks · {name} · {len(tasks)} tasks of {repos} repositories",
        _COLUMNS,
        tuple(_row(task) for task in tasks),
        tuple(_flags(tasks)),
    )


def _row(task: Task) -> tuple[Cell, ...]:
    return (
        label(task.instance_id),
        label(task.repo),
        label(task.difficulty) if task.difficulty else absent("the data set gives none"),
        count(len(task.FAIL_TO_PASS)),
        count(len(task.PASS_TO_PASS)),
        label(task.image) if task.image else absent("a bundled tree: no image of its own"),
    )


def _flags(tasks: Sequence[Task]) -> Iterator[str]:
    """What would keep tasks from being graded."""
    untested = [task.instance_id for task in tasks if not task.FAIL_TO_PASS]
    if untested:
        yield f"no fail-to-pass tests, so nothing to grade by: {', '.join(untested)}"
    if any(task.image for task in tasks):
        for column in ("version", "test_patch", "eval_script", "log_parser", "eval_type"):
            lacking = sum(not getattr(task, column) for task in tasks)
            if lacking:
                needs = "4" if column in ("version", "test_patch") else "5"
                yield f"without `{column}`, which grading by swebench {needs} needs: {lacking} of {len(tasks)}"
