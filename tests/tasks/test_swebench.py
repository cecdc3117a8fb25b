"""The task set `swebench`: what it refuses, what it makes of patches of every kind, what it sees in a repository.

Grading is tried in real sandboxes with the package's own functions, in each of its generations. The project under
test is ours: a module, a test file, and a runner that prints what pytest's summary prints.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError, ScoringError
from harness.record import Outcome, Reason
from harness.sandbox.docker import DockerOptions, DockerProvider
from harness.sandbox.docker import available as docker_available
from harness.sandbox.images import BASE_IMAGE, ROOT
from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import Image, SandboxLimits
from harness.score import score, what_is_graded
from harness.tasks.official import PYTHON_VARIABLE
from harness.tasks.protocol import History
from harness.tasks.swebench import SweBench, read_history
from tests.bug_cases.parts import shared_case
from tests.tasks.recorded import GENERATIONS, python_with

PYTEST = """\
#!/bin/sh
exec python tools/run.py "$2"
"""
RUNNER = """\
import runpy, sys
for name, test in runpy.run_path(sys.argv[1]).items():
    if name.startswith("test_"):
        try:
            test()
            print("PASSED", sys.argv[1] + "::" + name)
        except Exception:
            print("FAILED", sys.argv[1] + "::" + name)
"""
MODULE = """\
# One.
# Two.
def double(n):
    return n + n + 1


# A line between.
def same(n):
    return n
# The end.
"""
TESTS = """\
import sys
sys.path.insert(0, ".")
from mod import double, same


def test_same():
    assert same(3) == 3
"""
MORE = """\


def test_double():
    assert double(3) == 6
"""
SCRIPT = """\
#!/bin/bash
set -uxo pipefail
git apply -v - <<'EOF_HIDDEN'
{patch}
EOF_HIDDEN
: '>>>>> Start Test Output'
pytest -rA tests.py
: '>>>>> End Test Output'
"""
AUTHOR = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]


def git(tree: Path, *arguments: str, date: str = "2020-01-01T00:00:00+0000") -> str:
    env = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", *AUTHOR, *arguments], cwd=tree, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(tree: Path, **files: str) -> None:
    for name, text in files.items():
        (tree / f"{name}.py").write_text(text)


def diff(tree: Path, **files: str) -> str:
    """What changing those files is as a diff; the tree stays as it was."""
    write(tree, **files)
    text = subprocess.run(["git", "diff", "--binary"], cwd=tree, check=True, capture_output=True, text=True).stdout
    git(tree, "checkout", "--quiet", ".")
    return text


class World:
    """A project, its task, its set, and sandboxes of it."""

    def __init__(self, folder: Path, provider: NamespaceProvider) -> None:
        self.tree, self.provider = folder / "tree", provider
        (self.tree / "tools").mkdir(parents=True)
        (self.tree / "tools/pytest").write_text(PYTEST)
        (self.tree / "tools/pytest").chmod(0o755)
        (self.tree / "tools/run.py").write_text(RUNNER)
        write(self.tree, mod=MODULE, tests=TESTS)
        git(self.tree, "init", "--quiet")
        git(self.tree, "add", "--all")
        git(self.tree, "commit", "--quiet", "--message=Start")
        hidden = diff(self.tree, tests=TESTS + MORE)
        row = {
            "instance_id": "pallets__flask-1",
            "repo": "pallets/flask",
            "base_commit": git(self.tree, "rev-parse", "HEAD"),
            "problem_statement": "double is wrong",
            "version": "3.0",
            "test_patch": hidden,
            "FAIL_TO_PASS": json.dumps(["tests.py::test_double"]),
            "PASS_TO_PASS": ["tests.py::test_same"],
            "eval_script": SCRIPT.format(patch=hidden),
            "log_parser": "parse_log_pytest",
            "eval_type": "pass_and_fail",
        }
        (folder / "t.json").write_text(json.dumps([row]))
        self.set = SweBench(str(folder / "t.json"), "test", seconds=20)
        (self.task,) = self.set.tasks()
        with provider.start(Image(name="bare", tree=self.tree)) as sandbox:
            path = sandbox.act("printf %s $PATH", timeout_s=10).output.decode()
        self.image = Image(name="world", tree=self.tree, env={"PATH": f"/testbed/tools:{path}"})

    def grade(self, patch: str | bytes, *, seconds: float = 20.0, **changes: str) -> Outcome:
        """`patch` in a fresh sandbox."""
        task = self.task.model_copy(update=changes)
        self.set._seconds = seconds
        with self.provider.start(self.image) as sandbox:
            return self.set.grade(task, patch.encode() if isinstance(patch, str) else patch, sandbox)

    def diff(self, **files: str) -> str:
        return diff(self.tree, **files)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProvider]:
    if (why_not := available()) is not None:
        pytest.skip(f"no namespaces here: {why_not}")
    made = NamespaceProvider(limits=SandboxLimits(), scratch=tmp_path_factory.mktemp("scratch"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def project(provider: NamespaceProvider, tmp_path_factory: pytest.TempPathFactory) -> World:
    """For what needs no package."""
    return World(tmp_path_factory.mktemp("project"), provider)


@pytest.fixture(scope="module", params=list(GENERATIONS))
def world(
    request: pytest.FixtureRequest, provider: NamespaceProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    python = python_with(request.param)
    if python is None:
        pytest.skip(
            f"no environment with swebench {request.param}: scripts/setup-swebench {GENERATIONS[request.param]}"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON_VARIABLE, str(python))
        made = World(tmp_path_factory.mktemp("world"), provider)
        assert made.set.facts() == {"swebench": request.param}
        yield made
        made.set.close()


RIGHT = MODULE.replace("n + n + 1", "n + n")


# --- outcomes


def test_a_right_patch_resolves(world: World) -> None:
    outcome = world.grade(world.diff(mod=RIGHT))
    assert (outcome.status, outcome.reason) == ("resolved", Reason.RESOLVED), outcome
    assert (outcome.fail_to_pass, outcome.pass_to_pass, outcome.detail) == ((1, 1), (1, 1), "")


def test_a_wrong_patch_fails_tests_which_are_named(world: World) -> None:
    outcome = world.grade(world.diff(mod=MODULE.replace("+ 1", "+ 2")))
    assert (outcome.status, outcome.reason) == ("unresolved", Reason.TESTS_FAILED)
    assert outcome.detail == "not passed: tests.py::test_double"
    assert (outcome.fail_to_pass, outcome.pass_to_pass) == ((0, 1), (1, 1))


def test_a_patch_that_breaks_what_worked_is_unresolved(world: World) -> None:
    outcome = world.grade(world.diff(mod=RIGHT.replace("return n\n", "return -n\n")))
    assert (outcome.reason, outcome.pass_to_pass) == (Reason.TESTS_FAILED, (0, 1))


def test_a_patch_that_removes_the_tests_resolves_nothing(world: World) -> None:
    outcome = world.grade(world.diff(mod=RIGHT.replace("def double", "def triple")))
    assert outcome.status == "unresolved" and outcome.reason is not Reason.RESOLVED


def test_tests_that_take_too_long_are_an_outcome_of_their_own(world: World) -> None:
    outcome = world.grade(world.diff(mod="import time; time.sleep(60)\n" + RIGHT), seconds=1)
    assert (outcome.status, outcome.reason) == ("unresolved", Reason.TESTS_TIMED_OUT)


def test_output_that_holds_no_results_is_an_outcome_of_its_own(world: World) -> None:
    outcome = world.grade(world.diff(mod="import os; os._exit(3)\n" + RIGHT))
    assert outcome.status == "unresolved"
    # swebench 4 takes a log without results for one in which every test failed; 5 says that it cannot be read.
    generation_5 = world.set.facts()["swebench"].startswith("5")
    assert outcome.reason is (Reason.NO_TEST_REPORT if generation_5 else Reason.TESTS_FAILED)


def test_a_patched_test_run_that_prints_its_own_passes_does_not_resolve_under_swebench_5(world: World) -> None:
    cheat = (
        'print("PASSED tests.py::test_double\\nPASSED tests.py::test_same", flush=True); import os; os._exit(1)\n'
        + RIGHT
    )
    outcome = world.grade(world.diff(mod=cheat))
    if world.set.facts()["swebench"].startswith("5"):  # which looks at the exit code; 4 is taken in, and says so
        assert outcome.status == "unresolved"
    else:
        assert outcome.status == "resolved"


# --- patches of every kind


def test_every_shared_patch_that_cannot_be_used_is_of_its_own_class(world: World) -> None:
    """Bug case 032."""
    folder = shared_case("032-empty-patch")
    expected = json.loads((folder / "expected.json").read_text())
    classes = {
        "empty_patch": Reason.EMPTY_PATCH,
        "missing_patch": Reason.NO_SUBMISSION,
        "patch_does_not_apply": Reason.PATCH_DOES_NOT_APPLY,
    }
    for line in (folder / "predictions.jsonl").read_text().splitlines():
        row = json.loads(line)
        submission = (row["model_patch"] or "") if "model_patch" in row else None
        patch = what_is_graded("submission", submission, b"")
        tested = patch is not None and patch.strip()
        outcome = world.grade(patch or b"") if tested else score(world.task, patch, world.set, world.provider)
        assert (outcome.status, outcome.reason) == ("unresolved", classes[expected[row["instance_id"]]]), row
        assert not outcome.reason.tested


def test_of_a_working_tree_that_was_left_alone_nothing_is_graded(world: World) -> None:
    outcome = score(world.task, what_is_graded("working_tree", "ignored", b"\n"), world.set, world.provider)
    assert outcome.reason is Reason.EMPTY_PATCH


def test_a_patch_against_moved_lines_is_applied_by_a_later_try(world: World) -> None:
    """git apply alone refuses a hunk whose context differs; the package's next commands may take it or refuse it."""
    moved = world.diff(mod=RIGHT).replace(" # Two.\n", " # Zwei.\n")
    outcome = world.grade(moved)
    assert outcome.reason in (Reason.RESOLVED, Reason.PATCH_DOES_NOT_APPLY)
    has_patch = subprocess.run(["which", "patch"], capture_output=True).returncode == 0
    assert (outcome.reason is Reason.RESOLVED) == has_patch


def test_a_half_that_applies_is_not_graded_without_the_other(world: World) -> None:
    half = world.diff(mod=RIGHT) + "diff --git a/gone.py b/gone.py\n--- a/gone.py\n+++ b/gone.py\n@@ -1 +1 @@\n-x\n+y\n"
    outcome = world.grade(half)
    assert outcome.reason is Reason.PATCH_DOES_NOT_APPLY, outcome


def test_a_binary_patch_and_odd_names_come_through(world: World) -> None:
    """Bug cases 026 and 028, at the grading end."""
    write(world.tree, mod=RIGHT)
    (world.tree / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\xff")
    (world.tree / "naïve \t b name.txt").write_text("x")
    git(world.tree, "add", "--all")
    command = ["git", "diff", "--binary", "--cached"]
    patch = subprocess.run(command, cwd=world.tree, check=True, capture_output=True).stdout
    git(world.tree, "reset", "--quiet", "--hard")
    assert world.grade(patch).status == "resolved"


# --- what cannot be carried out is no outcome


def test_a_script_that_the_package_cannot_make_is_refused_before_anything_runs(world: World) -> None:
    world.set.require([world.task])
    lacking = {"version": "", "eval_script": None}
    with pytest.raises(ConfigError, match=r"^pallets__flask-1: swebench \S+ needs the column (version|eval_script)"):
        world.set.require([world.task.model_copy(update=lacking)])
    with pytest.raises(ConfigError, match="FAIL_TO_PASS is empty"):
        world.set.require([world.task.model_copy(update={"FAIL_TO_PASS": ()})])
    with pytest.raises(ConfigError, match="cannot be graded: swebench"):
        world.set.require([world.task.model_copy(update={"repo": "no/such", "log_parser": "no_such"})])


def test_a_sandbox_without_git_is_a_scoring_error(world: World) -> None:
    with world.provider.start(world.image) as sandbox:
        programs = sandbox.act("type -P bash setsid mkdir cat", timeout_s=10).output.decode().split()
    tree = world.tree.parent / "blind"
    subprocess.run(["cp", "-r", str(world.tree), str(tree)], check=True)
    (tree / "bin").mkdir()
    for program in programs:
        (tree / "bin" / Path(program).name).symlink_to(program)
    blind = Image(name="blind", tree=tree, env={"PATH": "/testbed/bin"})
    with world.provider.start(blind) as sandbox, pytest.raises(ScoringError, match="git"):
        world.set.grade(world.task, world.diff(mod=RIGHT).encode(), sandbox)


def test_what_swebench_5_calls_a_fault_of_the_machine_is_a_scoring_error(world: World) -> None:
    if world.set.facts()["swebench"].startswith("4"):
        pytest.skip("swebench 4 does not tell faults of the machine")
    with pytest.raises(ScoringError, match="out_of_memory"):
        world.set.outcome_of(world.task, b"fork: Cannot allocate memory\n")


# --- in a container


def test_a_task_whose_image_is_dockers_is_graded_there(world: World, tmp_path: Path) -> None:
    if (why_not := docker_available()) is not None:
        pytest.skip(f"no Docker here: {why_not}")
    with closing(DockerProvider(limits=SandboxLimits(), scratch=tmp_path, options=DockerOptions(pool=0))) as docker:
        base = docker._images.present(BASE_IMAGE)
        held = docker._images.with_tree(world.tree, "/testbed", base, ROOT)
        task = world.task.model_copy(update={"image": held.id, "eval_script": DOCKER_SCRIPT + world.task.eval_script})
        if world.set.facts()["swebench"].startswith("4"):
            pytest.skip("swebench 4 runs a script of its own, which finds no pytest in the bare image")
        outcomes = [
            score(task, patch.encode(), world.set, docker)
            for patch in (world.diff(mod=RIGHT), world.diff(mod=MODULE.replace("+ 1", "+ 2")), "no diff\n")
        ]
        with docker.start(world.set.image(task)) as sandbox:
            found = world.set.history_of(task, sandbox)
    assert [outcome.reason for outcome in outcomes] == [
        Reason.RESOLVED,
        Reason.TESTS_FAILED,
        Reason.PATCH_DOES_NOT_APPLY,
    ]
    assert found == History(0, 0)


DOCKER_SCRIPT = "export PATH=/testbed/tools:$PATH\n"


# --- images


def test_grading_starts_from_the_same_image_with_its_own_environment(project: World) -> None:
    image, graded = project.set.image(project.task), project.set.grading_image(project.task)
    assert image.docker == graded.docker == "swebench/sweb.eval.x86_64.pallets_1776_flask-1:latest"
    assert (image.cwd, image.tree, image.own_environment, graded.own_environment) == ("/testbed", None, False, True)
    assert image.name != graded.name


def test_a_sandbox_with_the_images_own_environment_has_nothing_of_ours(project: World) -> None:
    own = replace(project.image, name="own", own_environment=True, env={**project.image.env, "MINE": "1"})
    with project.provider.start(own) as sandbox:
        names = {line.split("=")[0] for line in sandbox.act("env", timeout_s=10).output.decode().splitlines()}
    assert {"PATH", "HOME", "MINE"} <= names
    assert not names & {"PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "GIT_CONFIG_COUNT", "LANG"}


# --- histories


LATER = "2024-01-01T00:00:00+0000"


def history(project: World, provider: NamespaceProvider, folder: Path, *moves: Sequence[str]) -> History:
    """What is seen in a copy of the project's repository after git did `moves` in it, at a later date."""
    tree = folder / "repository"
    subprocess.run(["cp", "-r", str(project.tree), str(tree)], check=True)
    for move in moves:
        git(tree, *move, date=LATER)
    task = project.task.model_copy(update={"base_commit": git(project.tree, "rev-parse", "HEAD")})
    with provider.start(Image(name=folder.name, tree=tree)) as sandbox:
        before = sandbox.digest()
        found = project.set.history_of(task, sandbox)
        assert sandbox.digest() == before
    return found


COMMIT = ("commit", "--quiet", "--allow-empty", "--message=Later")


def test_a_repository_that_ends_at_the_base_commit_is_fine(
    project: World, provider: NamespaceProvider, tmp_path: Path
) -> None:
    found = history(project, provider, tmp_path)
    assert (found, found.reaches_past_base) == (History(0, 0), False)


def test_one_commit_on_top_is_the_images_own(project: World, provider: NamespaceProvider, tmp_path: Path) -> None:
    found = history(project, provider, tmp_path, COMMIT)
    assert (found, found.reaches_past_base) == (History(1, 0), False)


def test_two_commits_on_top_are_not(project: World, provider: NamespaceProvider, tmp_path: Path) -> None:
    found = history(project, provider, tmp_path, COMMIT, COMMIT)
    assert (found.ahead, found.future, found.reaches_past_base) == (2, 0, True)
    assert "HEAD is 2 commits past" in found.line("t")


BACK = ("checkout", "--quiet", "--detach", "HEAD~1")
HIDDEN = {
    "on a branch": (COMMIT, ("branch", "later"), BACK),
    "by a tag": (COMMIT, ("tag", "v2"), BACK),
    "in the reflog": (COMMIT, ("reset", "--quiet", "--hard", "HEAD~1")),
    "unreachable": (COMMIT, ("reset", "--quiet", "--hard", "HEAD~1"), ("reflog", "expire", "--expire=now", "--all")),
    "packed": (COMMIT, ("branch", "later"), BACK, ("gc", "--quiet")),
}


@pytest.mark.parametrize("how", list(HIDDEN))
def test_a_later_commit_is_seen_wherever_it_lies(
    project: World, provider: NamespaceProvider, tmp_path: Path, how: str
) -> None:
    found = history(project, provider, tmp_path, *HIDDEN[how])
    assert (found.future, found.reaches_past_base) == (1, True), how
    assert "1 newer commits can be read" in found.line("t") and "of 2024-01-01" in found.line("t")


def test_a_base_commit_that_is_not_there_is_said(project: World, provider: NamespaceProvider, tmp_path: Path) -> None:
    image = Image(name="lacking", tree=project.tree)
    with provider.start(image) as sandbox:
        found = project.set.history_of(project.task.model_copy(update={"base_commit": "1" * 40}), sandbox)
    assert found.reaches_past_base and "lacks the base commit" in found.line("t")


@pytest.mark.parametrize("told", ["bash: git: command not found\n", "ahead 0\n", ""])
def test_a_look_that_was_not_carried_out_is_said(told: str) -> None:
    found = read_history(told)
    assert found.reaches_past_base and found.line("t") == "t: the image's git history could not be looked at"
