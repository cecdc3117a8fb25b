"""The bundled tasks: small Python repositories of our own writing, each with one bug.

Start trees are made once, in a cache named by their content. Modification times, commit dates and names are
fixed, so that a command prints the same bytes wherever and whenever it runs.
"""

import difflib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from harness.bundled import bundled
from harness.errors import ScoringError
from harness.record import Exit, Outcome, Reason, Task
from harness.sandbox.protocol import Image, Sandbox

Version = Literal["repo", "right", "wrong_1", "wrong_2"]
TEST_COMMAND = "python run_tests.py"

_EPOCH = 1_700_000_000
_GRADE = "../forkroll-grade"  # beside the working tree: a patch cannot reach it
_GIT_ENV = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "pocket",
    "GIT_AUTHOR_EMAIL": "pocket@example.invalid",
    "GIT_AUTHOR_DATE": f"{_EPOCH} +0000",
    "GIT_COMMITTER_NAME": "pocket",
    "GIT_COMMITTER_EMAIL": "pocket@example.invalid",
    "GIT_COMMITTER_DATE": f"{_EPOCH} +0000",
    "PATH": os.environ.get("PATH", os.defpath),
}


def _read_tree(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _unified(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    lines: list[str] = []
    for path in sorted(after):
        old, new = before.get(path), after[path]
        if old == new:
            continue
        lines.append(f"diff --git a/{path} b/{path}\n")
        if old is None:
            lines.append("new file mode 100644\n")
        source = "/dev/null" if old is None else f"a/{path}"
        pair = (old or "").splitlines(keepends=True), new.splitlines(keepends=True)
        lines += difflib.unified_diff(*pair, source, f"b/{path}")
    return "".join(lines)


@dataclass(frozen=True)
class PocketTask:
    """One bundled task as it lies on disk."""

    folder: Path
    facts: Mapping[str, Any]
    """task.yaml."""
    runner: str
    """Text of the test runner that every repository holds as run_tests.py."""

    @cached_property
    def start(self) -> dict[str, str]:
        """Path -> text of the start tree."""
        return {**_read_tree(self.folder / "repo"), "run_tests.py": self.runner}

    def changed(self, version: Version) -> dict[str, str]:
        """Path -> text of the files that `version` replaces."""
        return _read_tree(self.folder / version)

    def diff(self, version: Version) -> str:
        """`version` as a unified diff against the start tree."""
        return _unified(self.start, self.changed(version))

    @cached_property
    def hidden_tests(self) -> str:
        """Text of the hidden tests."""
        return (self.folder / "hidden_tests.py").read_text(encoding="utf-8")

    @cached_property
    def key(self) -> str:
        """Names the start tree by its content."""
        total = hashlib.sha256()
        for path, text in self.start.items():
            total.update(f"{path}\0{len(text)}\0{text}".encode())
        return f"{self.folder.name}-{total.hexdigest()[:16]}"


def pocket_tasks(folder: Path | None = None) -> dict[str, PocketTask]:
    """instance_id -> task, in order of name."""
    root = folder or bundled("pocket")
    runner = (root / "run_tests.py").read_text(encoding="utf-8")
    found = {}
    for path in sorted(root.glob("*/task.yaml")):
        facts = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        found[facts["instance_id"]] = PocketTask(path.parent, facts, runner)
    return found


def _git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=tree, env=_GIT_ENV, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _write_start(task: PocketTask, tree: Path) -> None:
    for name, text in task.start.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, encoding="utf-8")
    _git(tree, "init", "--quiet", "--initial-branch=main", "--template=")
    _git(tree, "add", "--all")
    _git(tree, "commit", "--quiet", "--message=Start")
    for path in tree.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the umask was
        os.utime(path, (_EPOCH, _EPOCH))
    os.utime(tree, (_EPOCH, _EPOCH))


def _make_tree(task: PocketTask, cache: Path) -> Path:
    """The start tree in `cache`; made aside and moved into place, so that two makers cannot collide."""
    final = cache / task.key
    if final.is_dir():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
    try:
        _write_start(task, making)
        making.chmod(0o755)
        making.rename(final)
    except OSError:
        if not final.is_dir():
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return final


class Pocket:
    """The task set `pocket`."""

    name = "pocket"

    def __init__(self, cache: Path) -> None:
        self._cache = cache / "pocket"
        self._pocket = pocket_tasks()

    def tasks(self) -> Sequence[Task]:
        """All tasks in order of name; start trees are made on first use (about 20 ms each)."""
        return [self._record(task) for task in self._pocket.values()]

    def _record(self, task: PocketTask) -> Task:
        facts = task.facts
        return Task(
            instance_id=facts["instance_id"],
            repo=facts["repo"],
            base_commit=self._base_commit(task),
            problem_statement=facts["problem_statement"],
            version=facts["version"],
            difficulty=facts["difficulty"],
            patch=task.diff("right"),
            test_patch=_unified({}, {"hidden_tests.py": task.hidden_tests}),
            FAIL_TO_PASS=tuple(facts["FAIL_TO_PASS"]),
            PASS_TO_PASS=tuple(facts["PASS_TO_PASS"]),
        )

    def _base_commit(self, task: PocketTask) -> str:
        return (_make_tree(task, self._cache) / ".git/refs/heads/main").read_text().strip()

    def image(self, task: Task) -> Image:
        """The start tree of `task`."""
        pocket = self._pocket[task.instance_id]
        return Image(name=f"pocket-{pocket.key}", tree=_make_tree(pocket, self._cache))

    grading_image = image

    def require(self, tasks: Sequence[Task]) -> None:
        """Nothing beyond a sandbox."""

    def facts(self) -> Mapping[str, str]:
        """Nothing: the bundled runner grades."""
        return {}

    def history_of(self, task: Task, sandbox: Sandbox) -> None:
        """One commit, made by us."""

    def close(self) -> None:
        """Nothing is open."""

    def grade(self, task: Task, patch: bytes, sandbox: Sandbox) -> Outcome:
        """Resolved when every FAIL_TO_PASS and PASS_TO_PASS test passes after `patch`."""
        pocket = self._pocket[task.instance_id]
        sandbox.write_file(f"{_GRADE}/patch.diff", patch)
        applied = sandbox.act(f"git apply --whitespace=nowarn {_GRADE}/patch.diff", timeout_s=30)
        if applied.exit_code != 0:
            return Outcome(status="unresolved", reason=Reason.PATCH_DOES_NOT_APPLY, detail="patch does not apply")
        sandbox.write_file(f"{_GRADE}/run_tests.py", pocket.runner.encode())
        sandbox.write_file(f"{_GRADE}/hidden_tests.py", pocket.hidden_tests.encode())
        ran = sandbox.act(f"python {_GRADE}/run_tests.py {_GRADE}/hidden_tests.py", timeout_s=30)
        if ran.ended is Exit.NOT_RUN:
            raise ScoringError(f"the hidden tests of {task.instance_id} were not run")
        return _verdict(task, ran.output.decode("utf-8", "replace"))


def _passed(output: str) -> set[str]:
    """Names with exactly one result line, a PASS: code under test that prints result lines wins nothing."""
    lines = [line.split(":", 1)[0].split(" ") for line in output.splitlines()]
    results = [(words[0], words[1]) for words in lines if len(words) == 2 and words[0] in ("PASS", "FAIL")]
    names = [name for _, name in results]
    return {name for result, name in results if result == "PASS" and names.count(name) == 1}


def _verdict(task: Task, output: str) -> Outcome:
    passed = _passed(output)
    fixed = len(passed.intersection(task.FAIL_TO_PASS)), len(task.FAIL_TO_PASS)
    kept = len(passed.intersection(task.PASS_TO_PASS)), len(task.PASS_TO_PASS)
    resolved = fixed[0] == fixed[1] and kept[0] == kept[1]
    missing = [name for name in (*task.FAIL_TO_PASS, *task.PASS_TO_PASS) if name not in passed]
    return Outcome(
        status="resolved" if resolved else "unresolved",
        reason=Reason.RESOLVED if resolved else Reason.TESTS_FAILED,
        detail="" if resolved else "not passed: " + " ".join(missing),
        fail_to_pass=fixed,
        pass_to_pass=kept,
    )
