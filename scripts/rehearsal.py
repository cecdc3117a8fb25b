"""See scripts/rehearsal."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.journal import RunFolder

FORKROLL = Path(sys.executable).with_name("forkroll")
PROJECT, VERSION, REPO = "marshmallow", "3.19.0", "marshmallow-code/marshmallow"
TOOLS = ("pytest==7.4.4", "pytz", "simplejson", "packaging")
IMAGE, ABSENT = "forkroll-rehearsal", "localhost:1/forkroll-rehearsal/absent:latest"
TASK, WITHOUT_IMAGE = "marshmallow-code__marshmallow-1", "marshmallow-code__marshmallow-2"
SOURCE, TESTS = "src/marshmallow/utils.py", "tests/test_utils.py"
RIGHT, WRONG = 'head, rest = key.split(".", 1)', 'head, rest = key.rsplit(".", 1)'
MORE_TESTS = """

def test_set_value_goes_down_every_level():
    d = {}
    utils.set_value(d, "a.b.c", 1)
    assert d == {"a": {"b": {"c": 1}}}
"""
ISSUE = """`utils.set_value` stops one level too early

`set_value(d, "a.b.c", 1)` on an empty dict gives `{"a.b": {"c": 1}}`; each dot should open a level of its own.
"""
ACTIVATE = """# Stands for the Conda of SWE-bench's images: there is one environment, and it is active.
conda() { :; }
"""
# swebench 5 wants the script as a column; swebench 4 makes its own.
EVALUATE = """#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
git checkout {base} {tests}
git apply -v - <<'EOF_HIDDEN'
{patch}
EOF_HIDDEN
: '>>>>> Start Test Output'
pytest -rA {tests}
: '>>>>> End Test Output'
git checkout {base} {tests}
"""
FIX = f"sed -i 's/key.rsplit/key.split/' {SOURCE}"
LOOK, SUBMIT = "grep -n 'head, rest' " + SOURCE, "echo FORKROLL_SUBMIT; git diff"
MODELS = {
    "fixer": [LOOK, "ls tests", FIX, SUBMIT],
    "breaker": [LOOK, "ls", f"sed -i 's/key.rsplit/key.partition/' {SOURCE}", SUBMIT],
    "idler": [LOOK, "pwd", "true", SUBMIT],
    "talker": [LOOK, "pwd", "true", "echo FORKROLL_SUBMIT; echo 'I think that nothing needs to change.'"],
    "walker": [LOOK, "pwd", FIX, "true", "true"],
}
DIRECTIONS = {"up": ("breaker", "fixer"), "down": ("fixer", "talker"), "lost": ("walker", "idler")}
EXPECTED = {
    "fixer": "resolved",
    "breaker": "tests_failed",
    "idler": "empty_patch",
    "talker": "patch_does_not_apply",
    "walker": "no_submission",
}


def stop(why: str) -> None:
    print(f"rehearsal: {why}", file=sys.stderr)
    sys.exit(3)


def told(*command: str, cwd: Path | None = None) -> str:
    """What a command that must succeed prints."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(
            f"rehearsal: {' '.join(command)} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def git(tree: Path, *arguments: str) -> str:
    named = ["-c", "user.name=rehearsal", "-c", "user.email=rehearsal@example.invalid"]
    return told("git", *named, *arguments, cwd=tree)


# --- the project, and what runs its tests


def fetch(folder: Path) -> Path:
    """The project's source, as its authors published it."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--no-binary", ":all:", "--dest", str(folder), f"{PROJECT}=={VERSION}"], capture_output=True, text=True
    )
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode or not archives:
        stop(f"no package index gives {PROJECT} {VERSION}: {done.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"{PROJECT}-{VERSION}"


def fetch_tools(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    done = subprocess.run([*pip, "--target", str(folder), *TOOLS], capture_output=True, text=True)
    if done.returncode:
        stop(f"no package index gives {' '.join(TOOLS)}: {done.stderr.strip().splitlines()[-1:]}")


def build(tree: Path, folder: Path, tools: Path, tag: str) -> str:
    """An image as SWE-bench has them: the repository at /testbed, its environment beside it; the tag."""
    context = folder / tag
    shutil.copytree(tree, context / "testbed", symlinks=True)
    shutil.copytree(tools, context / "tools")
    (context / "tools" / "testbed.pth").write_text("/testbed/src\n")
    (context / "activate").write_text(ACTIVATE)
    (context / "Dockerfile").write_text(
        "FROM forkroll-base\n"
        "COPY tools /usr/lib/python3/dist-packages\n"
        "COPY activate /opt/miniconda3/bin/activate\n"
        "COPY testbed /testbed\n"
        "RUN ln -sf python3 /usr/bin/python && mkdir -p /opt/tools && "
        "printf '#!/bin/sh\\nexec python3 -m pytest \"$@\"\\n' >/usr/bin/pytest && chmod +x /usr/bin/pytest\n"
        "WORKDIR /testbed\n"
    )
    told("docker", "build", "--quiet", "--network", "none", "--tag", f"{IMAGE}:{tag}", str(context))
    return f"{IMAGE}:{tag}"


def passed(image: str) -> set[str]:
    """Names of the tests in TESTS that pass in a container of `image`."""
    command = ["docker", "run", "--rm", "--network", "none", image, "bash", "-c", f"pytest -rA {TESTS}"]
    output = subprocess.run(command, capture_output=True, text=True).stdout
    return set(re.findall(r"^PASSED (\S+)", output, re.MULTILINE))


# --- the task


def without(text: str, names: set[str]) -> str:
    """Python source without the functions of those names."""
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            del lines[first - 1 : node.end_lineno]
    return "".join(lines)


def make_task(source: Path, folder: Path, tools: Path) -> dict[str, object]:
    """Seed the bug, find by running which tests it breaks, hide these, and write all that as an instance."""
    right, tests = (source / SOURCE).read_text(), (source / TESTS).read_text() + MORE_TESTS
    assert right.count(RIGHT) == 1
    shutil.rmtree(source / "docs")
    git(source, "init", "--quiet", "--initial-branch=main")
    (source / TESTS).write_text(tests)
    works = passed(build(source, folder, tools, "right"))
    (source / SOURCE).write_text(right.replace(RIGHT, WRONG))
    broken = works - passed(build(source, folder, tools, "wrong"))
    (source / TESTS).write_text(without(tests, {name.split("::")[1].split("[")[0] for name in broken}))
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--message=Start")
    base = git(source, "rev-parse", "HEAD").strip()
    image = build(source, folder, tools, "start")
    (source / TESTS).write_text(tests)
    hidden = git(source, "diff", "--", TESTS)
    (source / SOURCE).write_text(right)
    print(f"{PROJECT} {VERSION}: the bug breaks {len(broken)} of {len(works)} tests in {TESTS}: {sorted(broken)}")
    return {
        "instance_id": TASK,
        "repo": REPO,
        "base_commit": base,
        "version": "3.19",
        "problem_statement": ISSUE,
        "patch": git(source, "diff", "--", SOURCE),
        "test_patch": hidden,
        "FAIL_TO_PASS": json.dumps(sorted(broken)),
        "PASS_TO_PASS": json.dumps(sorted(works - broken)),
        "image": image,
        "eval_script": EVALUATE.format(base=base, tests=TESTS, patch=hidden),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


def tasks(folder: Path) -> Iterator[dict[str, object]]:
    """The task, the same with an image that cannot be had, and the same with the future in its history."""
    tools = folder / "tools"
    fetch_tools(tools)
    source = fetch(folder)
    task = make_task(source, folder, tools)
    yield task
    yield {**task, "instance_id": WITHOUT_IMAGE, "image": ABSENT}
    git(source, "checkout", "--quiet", "-b", "later")
    git(source, "add", "--all")
    os.environ["GIT_COMMITTER_DATE"] = "2090-01-01T00:00:00+0000"
    git(source, "commit", "--quiet", "--message=The fix")
    git(source, "checkout", "--quiet", "main")
    yield {**task, "instance_id": f"{TASK}0", "image": build(source, folder, tools, "later")}


def study(table: str) -> dict[str, object]:
    return {
        "name": "rehearsal",
        "seed": 1,
        "tasks": {"set": "swebench", "source": table},
        "sandbox": {"provider": "docker"},
        "grading": {"of": "submission", "seconds": 120},
        "models": {name: {"client": "scripted", "commands": commands} for name, commands in MODELS.items()},
        "directions": {name: {"base": base, "swap": swap} for name, (base, swap) in DIRECTIONS.items()},
        "forks": {"rule": "absolute", "at": [3]},
        "replicates": 1,
        "limits": {"calls": 5, "action_seconds": 30},
        "workers": 2,
        "retries": 0,
    }


# --- the run, and whether it is as it should be


def forkroll(folder: Path, *arguments: str, expected: int = 0) -> None:
    print(f"$ forkroll {' '.join(arguments)}", flush=True)
    code = subprocess.run([FORKROLL, *arguments], cwd=folder, stderr=subprocess.STDOUT).returncode
    if code != expected:
        sys.exit(f"rehearsal: exit code {code}, expected {expected}")
    print(flush=True)


def check(run: RunFolder) -> None:
    """Every arm ended as its model must."""
    records = run.records()
    arms = [(base.agent, base) for base in records.bases.values()]
    arms += [(branch.arm.agent, branch) for branch in records.branches.values()]
    for agent, record in arms:
        assert record.ending.outcome.reason == EXPECTED[agent], (record.id, record.ending.outcome)
    for branch in records.branches.values():
        assert branch.prefix.first_mismatch is None, branch.id
    assert {failure.id.split(":")[0] for failure in records.failures} == {WITHOUT_IMAGE}
    assert len(records.bases) == 2 * len(DIRECTIONS) and len(records.branches) == 4 * len(DIRECTIONS)
    found = run.manifest()["histories"]
    assert (found[TASK]["future"], found[f"{TASK}0"]["future"]) == (0, 1), found
    print(f"arms by reason: {dict(Counter(str(record.ending.outcome.reason) for _, record in arms))}")
    print(f"cells that failed, all for want of an image: {len(records.failures)}")


def go_on_with_logs(folder: Path) -> None:
    """Bases leave as mini-swe-agent's files, come back as logs of somebody, and another model takes over in Docker."""
    models: dict[str, object] = {"breaker": {"client": "imported"}}
    models["fixer"] = {"client": "scripted", "commands": MODELS["fixer"]}
    logged = study("tasks.jsonl") | {
        "name": "logged",
        "tasks": {"set": "swebench", "source": "tasks.jsonl", "ids": [TASK, f"{TASK}0"]},
        "models": models,
        "directions": {"up": {"base": "breaker", "swap": "fixer"}},
        "arms": ["swap"],
    }
    (folder / "logged.yaml").write_text(json.dumps(logged))
    forkroll(folder, "export", "runs/rehearsal", "logs", "--format", "traj")
    forkroll(folder, "import", "mini", "logs/base-breaker", "--study", "logged.yaml", "--agent", "breaker")
    forkroll(folder, "run", "logged.yaml")
    branches = RunFolder(folder / "runs/logged").records().branches.values()
    assert len(branches) == 2
    for branch in branches:
        assert branch.ending.outcome.reason == "resolved", branch.ending.outcome
        assert branch.prefix.outputs_equal == branch.prefix.actions == 2, branch.prefix
    print(f"branches of imported logs: {len(branches)}, all resolved, prefixes equal", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        table = "".join(json.dumps(task) + "\n" for task in tasks(folder))
        (folder / "tasks.jsonl").write_text(table)
        (folder / "rehearsal.yaml").write_text(json.dumps(study("tasks.jsonl")))
        forkroll(folder, "tasks", "rehearsal.yaml")
        forkroll(folder, "tasks", "rehearsal.yaml", "--reference", expected=4)
        forkroll(folder, "run", "rehearsal.yaml", expected=4)
        forkroll(folder, "status", "runs/rehearsal", expected=4)
        run = RunFolder(folder / "runs/rehearsal")
        check(run)
        go_on_with_logs(folder)
        forkroll(folder, "grade", "runs/rehearsal", "--times", "2")
        told("docker", "rmi", *(f"{IMAGE}:{tag}" for tag in ("right", "wrong", "start", "later")))
        regrades = run.records().regrades
        assert len(regrades) == 2 * 10 and all(one.outcome.reason for one in regrades.values())


main()
