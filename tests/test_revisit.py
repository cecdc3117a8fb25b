"""Back to a point of a recorded run: a shell there, and a cell run again."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.journal import Records
from harness.revisit import find_place
from tests.made import make_base, make_branch
from tests.test_cli import FORKROLL, SCRIPTED, forkroll

BASE = make_base(["a", "b", "c"])
BRANCH = make_branch(BASE, 2, "swap", 1, ["x", "y"])
RECORDS = Records(bases={BASE.id: BASE}, branches={BRANCH.id: BRANCH})


@pytest.mark.parametrize(
    ("name", "steps", "step"),
    [
        ("t:a", ["a", "b", "c"], 4),
        ("t:a@1", ["a", "b", "c"], 1),
        ("t:a@3", ["a", "b", "c"], 3),
        ("t:up@2:swap#1", ["a", "x", "y"], 4),
        ("t:up@2:swap#1@2", ["a", "x", "y"], 2),
    ],
)
def test_a_place_is_a_record_and_a_step(name: str, steps: list[str], step: int) -> None:
    place = find_place(name, RECORDS)
    assert [step.reply.actions[0].command for step in place.path.steps] == steps
    assert place.step == step


@pytest.mark.parametrize("name", ["t:a@0", "t:a@5", "t:b", "t:a@x", "nope@2", "t:up@2:swap#1@9"])
def test_no_such_place(name: str) -> None:
    with pytest.raises(UsageError, match=r"no record|has steps"):
        find_place(name, RECORDS)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("revisit")
    (folder / "tiny.yaml").write_text(SCRIPTED)
    assert forkroll("run", "tiny.yaml", cwd=folder).returncode == 0
    return folder


def ids(done: Path) -> tuple[str, str]:
    base = forkroll("show", "runs/tiny", cwd=done).stdout.splitlines()[1].split()[0]
    return base, base.replace(":a", ":up@2:swap#1")


def in_shell(done: Path, place: str, typed: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "FORKROLL_CACHE": str(done / "cache")}
    command = [str(FORKROLL), "shell", "runs/tiny", place]
    return subprocess.run(command, cwd=done, env=env, input=typed, capture_output=True, text=True, timeout=60)


def test_a_shell_stands_where_the_run_stood(done: Path) -> None:
    base, _ = ids(done)
    before, after = (in_shell(done, place, "git status --short; exit 7\n") for place in (f"{base}@2", f"{base}@3"))
    assert (before.returncode, before.stdout) == (7, "")
    assert (after.returncode, after.stdout) == (7, " M README.md\n")
    assert "2/2 exit codes, 2/2 outputs, 3/3 states equal" in after.stderr


def test_a_branch_is_brought_to_its_own_steps(done: Path) -> None:
    _, branch = ids(done)
    assert "1/1 exit codes" in in_shell(done, f"{branch}@2", "true\n").stderr


def test_nothing_of_a_shell_is_left(done: Path) -> None:
    base, _ = ids(done)
    in_shell(done, base, "echo x > new\n")
    assert list((done / "runs/tiny/sandboxes").iterdir()) == []


def test_a_rerun_shows_its_steps_and_equals_the_record(done: Path) -> None:
    for cell in ids(done):
        made = forkroll("rerun", "runs/tiny", cell, cwd=done)
        assert made.returncode == 0
        assert "[exit 0]" in made.stderr
        assert "equal to the record" in made.stderr


def test_a_rerun_that_comes_out_otherwise_says_so(done: Path) -> None:
    base, _ = ids(done)
    study = done / "runs/tiny/study.yaml"
    kept = study.read_text()
    try:
        study.write_text(kept.replace("echo x >>", "echo y >>"))
        made = forkroll("rerun", "runs/tiny", base, cwd=done)
    finally:
        study.write_text(kept)
    assert made.returncode == 1
    assert "differs from the record after 1 equal steps" in made.stderr


def test_a_rerun_records_nothing(done: Path) -> None:
    before = {path: path.read_bytes() for path in (done / "runs/tiny/records").iterdir()}
    forkroll("rerun", "runs/tiny", ids(done)[0], cwd=done)
    assert {path: path.read_bytes() for path in (done / "runs/tiny/records").iterdir()} == before


@pytest.mark.parametrize("command", [["shell", "runs/tiny", "nope@3"], ["rerun", "runs/tiny", "nope"]])
def test_what_is_not_there_is_one_line_and_exit_2(done: Path, command: list[str]) -> None:
    made = forkroll(*command, cwd=done)
    assert (made.returncode, made.stderr.count("\n")) == (2, 1)


def test_keep_sandbox_gives_a_shell_in_what_the_rollout_left(done: Path) -> None:
    base, _ = ids(done)
    env = {**os.environ, "FORKROLL_CACHE": str(done / "cache")}
    command = [str(FORKROLL), "rerun", "runs/tiny", base, "--keep-sandbox"]
    made = subprocess.run(
        command, cwd=done, env=env, input="git status --short\n", capture_output=True, text=True, timeout=60
    )
    assert (made.returncode, made.stdout) == (0, " M README.md\n")
