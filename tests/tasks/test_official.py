"""The official grader, in each of its generations: real logs and reports get their recorded verdicts.

Needs the environments that scripts/setup-swebench makes; without one, its tests are skipped.
"""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import ConfigError, ScoringError
from harness.record import Task
from harness.tasks import swebench_worker
from harness.tasks.official import PYTHON_VARIABLE, Official, interpreter
from tests.tasks.recorded import GENERATIONS, lines, python_with, recorded_logs, recorded_reports

TASK = Task(
    instance_id="django__django-1",
    repo="django/django",
    base_commit="0" * 40,
    problem_statement="x",
    version="3.0",
    test_patch="diff --git a/tests/auth_tests/test_forms.py b/tests/auth_tests/test_forms.py\n",
    FAIL_TO_PASS=("test_a (auth_tests.test_forms.T)",),
    PASS_TO_PASS=("test_b (auth_tests.test_forms.T)",),
)
CARRIED = {"eval_script": "#!/bin/bash\ntrue\n", "log_parser": "parse_log_django", "eval_type": "pass_and_fail"}


@pytest.fixture(scope="module", params=list(GENERATIONS))
def official(request: pytest.FixtureRequest) -> Iterator[Official]:
    python = python_with(request.param)
    if python is None:
        pytest.skip(
            f"no environment with swebench {request.param}: scripts/setup-swebench {GENERATIONS[request.param]}"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON_VARIABLE, str(python))
        made = Official()
        assert made.package.version == request.param
        yield made
        made.close()


def carried(task: Task) -> Task:
    """`task` with the columns that swebench 5 reads."""
    return task.model_copy(update=CARRIED)


def log_of(**statuses: str) -> bytes:
    """A log as the evaluation script leaves it: between its markers, django's lines for the tests."""
    tests = "".join(f"test_{name} (auth_tests.test_forms.T) ... {status}\n" for name, status in statuses.items())
    return f"+ : '>>>>> Start Test Output'\n{tests}+ : '>>>>> End Test Output'\n".encode()


def test_every_recorded_log_gets_its_recorded_verdict(official: Official, shared_data: Path) -> None:
    logs = recorded_logs(shared_data)
    differing = [log.task.instance_id for log in logs if official.report(log.task, log.log)["resolved"] != log.resolved]
    assert len(logs) == 146
    assert Counter(log.resolved for log in logs) == {True: 75, False: 71}
    assert differing == []


def test_every_recorded_report_gets_its_recorded_verdict_from_its_tests(official: Official, shared_data: Path) -> None:
    reports = recorded_reports(shared_data)
    with_tests = [report for report in reports if "tests_status" in report]
    full = [official.resolution(report["tests_status"]) == "RESOLVED_FULL" for report in with_tests]
    assert len(reports) == 646
    assert full == [report["resolved"] for report in with_tests]
    assert not any(report["resolved"] for report in reports if "tests_status" not in report)


def test_the_verdict_follows_the_tests(official: Official) -> None:
    task = carried(TASK)
    assert official.report(task, log_of(a="ok", b="ok"))["resolved"]
    for statuses in ({"a": "FAIL", "b": "ok"}, {"a": "ok", "b": "ERROR"}, {"a": "ok"}, {"b": "ok"}):
        assert not official.report(task, log_of(**statuses))["resolved"], statuses


def test_output_that_holds_no_results_is_not_taken_for_an_applied_patch(official: Official) -> None:
    assert not official.report(carried(TASK), b"Segmentation fault\n")["patch_successfully_applied"]


def test_a_log_that_is_not_text_is_graded_all_the_same(official: Official) -> None:
    assert official.report(carried(TASK), b"\xff\xfe\n" + log_of(a="ok", b="ok"))["resolved"]


def test_a_missing_column_is_named_with_what_needs_it(official: Official) -> None:
    lacking = TASK.model_copy(update={"version": ""})
    column = "version" if official.package.version.startswith("4") else "eval_script"
    with pytest.raises(ConfigError, match=rf"^django__django-1: swebench \S+ needs the column {column}"):
        official.script(lacking)


def test_what_the_package_cannot_do_is_a_scoring_error_and_the_next_question_is_answered(official: Official) -> None:
    with pytest.raises(ScoringError, match="swebench"):
        official.report(carried(TASK).model_copy(update={"repo": "no/such", "log_parser": "no_such"}), b"")
    assert official.resolution({"FAIL_TO_PASS": {"success": ["a"], "failure": []}, "PASS_TO_PASS": {"success": [],
                                "failure": []}}) == "RESOLVED_FULL"  # fmt: skip


def test_the_script_runs_the_named_tests_between_the_markers(official: Official) -> None:
    script = official.script(TASK.model_copy(update={**CARRIED, "eval_script": SCRIPT}))
    start, tests, end = (script.index(text) for text in (">>>>> Start Test", "runtests.py", ">>>>> End Test"))
    assert start < tests < end


SCRIPT = """\
#!/bin/bash
set -uxo pipefail
: '>>>>> Start Test Output'
./tests/runtests.py auth_tests.test_forms
: '>>>>> End Test Output'
"""


def test_a_process_that_was_killed_is_a_scoring_error_and_started_again(official: Official) -> None:
    assert official.package.version
    process = official._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ScoringError, match="ended with code"):
        official.report(carried(TASK), log_of(a="ok", b="ok"))
    assert official.report(carried(TASK), log_of(a="ok", b="ok"))["resolved"]


def test_a_python_without_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, "/usr/bin/env-of-nobody")
    with pytest.raises(ConfigError, match=r"FORKROLL_SWEBENCH_PYTHON names .*, which cannot be run"):
        interpreter()
    monkeypatch.setenv(PYTHON_VARIABLE, os.path.relpath("/bin/sh"))
    assert interpreter() == "/bin/sh"
    monkeypatch.setenv(PYTHON_VARIABLE, "/bin/false")
    with pytest.raises(ConfigError, match="cannot use the package swebench"):
        _ = Official().package


COMPARE = """
import importlib.util, json, sys
place = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(place)
place.loader.exec_module(worker)
from swebench.harness.test_spec.test_spec import make_test_spec
for row in map(json.loads, sys.stdin):
    print(make_test_spec(row, namespace="swebench").eval_script == worker.Four().script(row))
"""


def test_the_script_that_needs_no_network_is_the_one_that_swebench_4_makes(shared_data: Path) -> None:
    """For the repository among the recorded ones whose image needs no file from the network to be described."""
    python = python_with("4.1.0")
    if python is None:
        pytest.skip("no environment with swebench 4.1.0: scripts/setup-swebench 4")
    rows = [row for row in lines(shared_data / "swebench/verified_instances.jsonl.gz") if row["test_patch"]]
    offline = [row for row in rows if row["repo"] == "astropy/astropy"]
    done = subprocess.run(
        [python, "-c", COMPARE, swebench_worker.__file__],
        input="".join(json.dumps(row) + "\n" for row in offline),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True"] * 4
