"""What is said of tasks before anything is run: flags are counted; what was not graded is no failure."""

from analysis.task_table import reference_table, task_table
from harness.record import Outcome, Reason, Task

TASKS = [
    Task(
        instance_id=f"d__d-{number}",
        repo="d/d",
        base_commit="0" * 40,
        problem_statement="x",
        version="1",
        image="i:1",
        test_patch="diff" if number else "",
        FAIL_TO_PASS=("a",) if number < 2 else (),
    )
    for number in range(3)
]


def test_what_would_keep_tasks_from_being_graded_is_counted() -> None:
    table = task_table(TASKS, "s")
    assert table.notes == (
        "no fail-to-pass tests, so nothing to grade by: d__d-2",
        "without `test_patch`, which grading by swebench 4 needs: 1 of 3",
        "without `eval_script`, which grading by swebench 5 needs: 3 of 3",
        "without `log_parser`, which grading by swebench 5 needs: 3 of 3",
        "without `eval_type`, which grading by swebench 5 needs: 3 of 3",
    )


def test_bundled_tasks_have_no_image_and_no_flags() -> None:
    table = task_table([TASKS[1].model_copy(update={"image": None})], "s")
    assert table.notes == ()
    assert table.rows[0][-1].value is None and "no image of its own" in table.rows[0][-1].note


def test_a_reference_patch_that_was_not_graded_counts_neither_way() -> None:
    right = Outcome(status="resolved", reason=Reason.RESOLVED, fail_to_pass=(1, 1), pass_to_pass=(2, 2))
    wrong = Outcome(
        status="unresolved",
        reason=Reason.TESTS_FAILED,
        detail="not passed: a",
        fail_to_pass=(0, 1),
        pass_to_pass=(2, 2),
    )
    table = reference_table(TASKS, [(right, None), (wrong, None), (None, "sandbox: no image")], "s")
    assert table.title == "reference patches · s · 1 of 2 graded resolve; 1 could not be graded"
    assert [row[1].value for row in table.rows] == ["resolved", "tests_failed", None]
    assert table.rows[1][2].parts == {"numerator": 0, "denominator": 1}
    assert table.rows[2][1].note == "not graded: sandbox: no image"
    assert table.notes == ("d__d-1: not passed: a",)
