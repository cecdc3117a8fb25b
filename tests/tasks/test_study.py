"""A study on a table of tasks, as a person meets it: what is refused, what is listed, what a run keeps."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.journal import RunFolder
from harness.record import Ending, Reason
from harness.tasks.official import PYTHON_VARIABLE
from tests.bug_cases.parts import Run, make_run
from tests.tasks.test_rows import ROW, write

FORKROLL = Path(sys.executable).with_name("forkroll")
STUDY = {
    "name": "case",
    "seed": 1,
    "tasks": {"set": "swebench", "source": "t.jsonl"},
    "sandbox": "docker",
    "models": {"a": {"client": "scripted", "commands": ["ls"]}},
    "directions": {"up": {"base": "a", "swap": "a"}},
    "forks": {"rule": "absolute", "at": [2]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "t.jsonl", [ROW, {**ROW, "instance_id": "demo__Demo-2", "difficulty": "1-4 hours"}])
    (tmp_path / "case.yaml").write_text(json.dumps(STUDY))
    return tmp_path


def forkroll(folder: Path, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    made = {**os.environ, "FORKROLL_CACHE": str(folder / "cache"), **env}
    return subprocess.run([FORKROLL, *arguments], cwd=folder, env=made, capture_output=True, text=True, timeout=60)


REFUSED = [
    (["tasks.source=null"], "the set `swebench` needs a `source`"),
    (["tasks.set=pocket"], "`pocket` is bundled and takes no `source`"),
    (["tasks.source=other.jsonl"], "no file other.jsonl"),
    (["tasks.slice=first"], "`tasks.slice`"),
    (["tasks.difficulty=[easy]"], "`tasks.difficulty`: no task has 'easy'; there are: 1-4 hours"),
    (["tasks.shufle=1"], "did you mean `shuffle`?"),
    (["grading.of=tree"], "`grading.of`"),
    (["grading.secnds=1"], "did you mean `seconds`?"),
    ([], "FORKROLL_SWEBENCH_PYTHON names /no/such/python, which cannot be run"),
]


@pytest.mark.parametrize(("overrides", "said"), REFUSED)
def test_what_cannot_be_meant_is_one_line_exit_2_and_nothing_written(
    folder: Path, overrides: list[str], said: str
) -> None:
    done = forkroll(folder, "run", "case.yaml", *overrides, **{PYTHON_VARIABLE: "/no/such/python"})
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert not (folder / "runs").exists()


def test_tasks_of_a_study_and_of_a_table_are_listed(folder: Path) -> None:
    of_study = forkroll(folder, "tasks", "case.yaml", "tasks.ids=[demo__Demo-2]", "--format", "json")
    assert of_study.returncode == 0, of_study.stderr
    (table,) = json.loads(of_study.stdout)
    (row,) = table["rows"]
    assert (row["task"]["value"], row["difficulty"]["value"]) == ("demo__Demo-2", "1-4 hours")
    assert row["image"]["value"] == "swebench/sweb.eval.x86_64.demo_1776_demo-2:latest"
    assert (row["fail_to_pass"]["value"], row["pass_to_pass"]["value"]) == (1, 1)
    (table,) = json.loads(forkroll(folder, "tasks", "t.jsonl", "count=1", "--format", "json").stdout)
    assert [row["task"]["value"] for row in table["rows"]] == ["demo__Demo-1"]
    assert "without `eval_script`, which grading by swebench 5 needs: 1 of 1" in table["notes"]


def test_a_misspelt_key_of_a_listed_set_is_named(folder: Path) -> None:
    done = forkroll(folder, "tasks", "t.jsonl", "cont=1")
    assert done.returncode == 2 and "did you mean `count`?" in done.stderr


# --- reference patches


def test_the_reference_patches_of_bundled_tasks_resolve_where_a_study_grades(finished: Run) -> None:
    done = forkroll(finished.folder, "tasks", "case.yaml", "tasks.count=2", "--reference", "--format", "json")
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)
    assert [row["outcome"]["value"] for row in table["rows"]] == ["resolved", "resolved"]
    assert "2 of 2 graded resolve" in table["title"]
    assert not (finished.folder / "sandboxes").exists()


def test_a_reference_patch_that_cannot_be_graded_is_named_and_not_counted_as_failed(folder: Path) -> None:
    done = forkroll(folder, "tasks", "case.yaml", "--reference", **{PYTHON_VARIABLE: "/no/such/python"})
    assert done.returncode == 2 and "cannot be run" in done.stderr


# --- what is graded


PROSE = ["touch new.txt", "echo FORKROLL_SUBMIT; echo no diff"]
MODELS = {"prose": PROSE, "nothing": ["touch new.txt", "echo FORKROLL_SUBMIT"], "silent": ["touch new.txt", "ls"]}


@pytest.fixture(scope="module", params=["submission", "working_tree"])
def graded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Ending]]:
    """What is graded, and how the base of each model ended."""
    run = make_run(
        tmp_path_factory.mktemp("graded"),
        {"client": "scripted", "commands": ["ls"]},
        models={name: {"client": "scripted", "commands": commands} for name, commands in MODELS.items()},
        directions={name: {"base": name, "swap": name} for name in MODELS},
        forks={"rule": "absolute", "at": [9]},
        grading={"of": request.param},
        limits={"calls": 2},
    )
    assert run.finish() == 0
    return request.param, {base.agent: base.ending for base in run.records().bases.values()}


def test_what_is_graded_is_what_the_study_says_and_both_are_kept(graded: tuple[str, dict[str, Ending]]) -> None:
    of, endings = graded
    assert {name: ending.submission for name, ending in endings.items()} == {
        "prose": "no diff\n",
        "nothing": "",
        "silent": None,
    }
    assert all(b"new.txt" in ending.patch and ending.graded == of for ending in endings.values())
    reasons = {name: ending.outcome.reason for name, ending in endings.items()}
    if of == "submission":
        assert reasons == {
            "prose": Reason.PATCH_DOES_NOT_APPLY,
            "nothing": Reason.EMPTY_PATCH,
            "silent": Reason.NO_SUBMISSION,
        }
    else:
        assert set(reasons.values()) == {Reason.TESTS_FAILED}


# --- every slot of the plan once (bug case 034)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    commands = ["ls", "echo FORKROLL_SUBMIT"]
    made = make_run(tmp_path_factory.mktemp("run"), {"client": "scripted", "commands": commands}, replicates=2)
    assert made.finish() == 0
    return made


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    """A copy to be damaged."""
    shutil.copytree(finished.folder, tmp_path / "copy")
    return Run(tmp_path / "copy")


def lines_of(run: Run) -> tuple[Path, list[str]]:
    (file,) = (run.run_folder / "records").glob("*.jsonl")
    return file, file.read_text().splitlines(keepends=True)


def test_missing_slots_are_owed_and_strangers_named(run: Run) -> None:
    file, lines = lines_of(run)
    stranger = lines[-1].replace("#1", "#9").replace("#2", "#9").replace('"id":"pocket', '"id":"pocket', 1)
    file.write_text("".join([*lines[:-1], stranger]))
    done = run.tell("status")
    assert done.returncode == 4
    said = done.stdout.decode()
    assert "1 bases and 2 branches done, 1 cells owed" in said
    assert "recorded but not in the plan: " in said and "#9" in said


def test_a_slot_that_is_there_twice_is_refused_by_name(run: Run) -> None:
    file, lines = lines_of(run)
    file.write_text("".join([*lines, lines[-1]]))
    done = run.tell("status")
    assert done.returncode == 2
    assert json.loads(lines[-1])["id"] in done.stderr.decode() and b"recorded twice" in done.stderr


# --- what a run keeps


def test_a_run_is_read_without_the_table_that_its_tasks_came_from(run: Run) -> None:
    (task,) = RunFolder(run.run_folder).tasks() or []
    assert task.instance_id.startswith("pocket__") and task.problem_statement
    run.run_folder.joinpath("tasks.jsonl").write_text("{}\n")
    broken = run.tell("status")
    assert broken.returncode == 2 and b"tasks.jsonl: not a list of tasks" in broken.stderr
