"""The task set `swebench`: tasks from a table, start trees in Docker images, grading by the swebench package.

Grading does what the package does with a container of its own, in a sandbox of ours: the patch is tried with the
package's commands in its order, the evaluation script runs in the image's own environment, and the package says what
its output means. Whatever it says is kept apart from what could not be carried out: that is a ScoringError.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import ConfigError, ScoringError
from harness.record import Exit, Observation, Outcome, Reason, Task
from harness.sandbox.protocol import Image, Sandbox
from harness.tasks.official import Official
from harness.tasks.protocol import History
from harness.tasks.rows import read_tasks

WORKING_FOLDER = "/testbed"
_PATCH, _SCRIPT, _LOG = "/tmp/patch.diff", "/eval.sh", "/tmp/forkroll-test-output"
_APPLY_S, _HISTORY_S = 300.0, 300.0
_NO_SUCH_COMMAND = 127
_LOG_BYTES = 256 * 1024**2
_CLEAN = "git checkout -- . ; git clean -fd"

_HISTORY = r"""
base=$(git rev-parse -q --verify '{base}^{{commit}}') || {{ echo lacking; exit 0; }}
since=$(git show -s --format=%ct "$base")
echo ahead $(git rev-list --count "$base..HEAD")
objects() {{ git cat-file --batch-all-objects --unordered --batch-check='%(objecttype) %(objectname)'; }}
comm -23 <(objects | sed -n 's/^commit //p' | sort) <(git rev-list HEAD "$base" | sort) |
    xargs -r -n 500 git show -s --format='%ct %h %cs' |
    awk -v since="$since" '$1 > since {{ n++; if (n < 4) print "such", $2, $3 }} END {{ print "future", n + 0 }}'
"""
"""Every commit among the repository's objects counts, reachable or not: an agent can find it by its hash."""


class SweBench:
    """A table of tasks in SWE-bench's columns, classic or swebench 5's."""

    name = "swebench"

    def __init__(self, source: str, split: str, *, seconds: float = 1800.0) -> None:
        """`seconds`: time for one run of the hidden tests."""
        self._source, self._split, self._seconds = source, split, seconds
        self._tasks: list[Task] | None = None
        self._official = Official()

    def tasks(self) -> Sequence[Task]:
        """All tasks of the split, in the table's order; read when they are asked for."""
        if self._tasks is None:
            self._tasks = read_tasks(self._source, self._split)
        return self._tasks

    def require(self, tasks: Sequence[Task]) -> None:
        """Hidden tests and a script for each; the script is made as it will be for grading."""
        for task in tasks:
            if not task.FAIL_TO_PASS:
                raise ConfigError(f"{task.instance_id}: FAIL_TO_PASS is empty: there is nothing to grade by")
            try:
                self._official.script(task)
                self._official.report(task, b"")
            except ScoringError as error:
                raise ConfigError(f"{task.instance_id} cannot be graded: {error}") from None

    def image(self, task: Task) -> Image:
        """The task's Docker image."""
        assert task.image is not None, "tasks of this set name their image"
        key = hashlib.sha256(task.image.encode()).hexdigest()[:8]
        safe = re.sub(r"[^A-Za-z0-9_.-]", "-", task.instance_id)
        return Image(name=f"{safe}-{key}", tree=None, docker=task.image, cwd=WORKING_FOLDER)

    def grading_image(self, task: Task) -> Image:
        """The same image with no variables but its own: those of ours could change what tests do."""
        image = self.image(task)
        return Image(f"{image.name}-graded", None, docker=image.docker, cwd=image.cwd, own_environment=True)

    def facts(self) -> Mapping[str, str]:
        """The package's version."""
        return {"swebench": self._official.package.version}

    def close(self) -> None:
        """End the grading process."""
        self._official.close()

    def history_of(self, task: Task, sandbox: Sandbox) -> History:
        """Commits beyond the base commit, by looking at every object of the repository. Leaves the tree alone."""
        seen = sandbox.act(_HISTORY.format(base=task.base_commit), timeout_s=_HISTORY_S)
        return read_history(seen.output.decode("utf-8", "replace"))

    def grade(self, task: Task, patch: bytes, sandbox: Sandbox) -> Outcome:
        """What the package says of the hidden tests after `patch`."""
        sandbox.write_file(_PATCH, patch)
        refused = self._apply(sandbox)
        if refused is not None:
            return Outcome(status="unresolved", reason=Reason.PATCH_DOES_NOT_APPLY, detail=refused)
        sandbox.write_file(_SCRIPT, self._official.script(task).encode("utf-8"))
        ran = sandbox.act(f"bash {_SCRIPT} >{_LOG} 2>&1", timeout_s=self._seconds)
        if ran.ended in (Exit.NOT_RUN, Exit.DISK_LIMIT):
            raise ScoringError(f"the hidden tests of {task.instance_id} were not run to their end: {ran.ended.value}")
        if ran.ended is Exit.TIME_LIMIT:
            return Outcome(status="unresolved", reason=Reason.TESTS_TIMED_OUT, detail=f"after {self._seconds:g} s")
        return self.outcome_of(task, _log_of(sandbox))

    def outcome_of(self, task: Task, log: bytes) -> Outcome:
        """The outcome that the package reads from the output of the task's script."""
        report = self._official.report(task, log)
        if report.get("infra_failure"):
            raise ScoringError(f"swebench sees a fault of the machine: {report.get('infra_failure_reason')}")
        if not report["patch_successfully_applied"]:  # the package's name for output that it cannot read
            detail = report.get("infra_failure_reason") or "the output of the tests cannot be read as results"
            return Outcome(status="unresolved", reason=Reason.NO_TEST_REPORT, detail=detail)
        return _outcome(report["tests_status"], resolved=report["resolved"])

    def _apply(self, sandbox: Sandbox) -> str | None:
        """Try the package's commands in order; None when one of them applied the patch, else what the last said."""
        package, last = self._official.package, b""
        for number, command in enumerate(package.apply):
            if number and package.cleans:
                _act(sandbox, _CLEAN)
            tried = _act(sandbox, f"{command} {_PATCH}")
            if tried.exit_code == _NO_SUCH_COMMAND and command.startswith("git "):
                raise ScoringError("there is no git in the sandbox to apply a patch with")
            if tried.exit_code == 0:
                return None
            last = tried.output
        if package.cleans and _act(sandbox, f"git apply --check --reverse {_PATCH}").exit_code == 0:
            return None
        said = last.decode("utf-8", "replace").strip().split("\n")[-1]
        return f"patch does not apply: {said}"[:300]


def _act(sandbox: Sandbox, command: str) -> Observation:
    seen = sandbox.act(command, timeout_s=_APPLY_S)
    if seen.ended is not Exit.EXITED:
        raise ScoringError(f"`{command}` was not run to its end: {seen.ended.value}")
    return seen


def _log_of(sandbox: Sandbox) -> bytes:
    log = sandbox.read_file(_LOG)
    if len(log) > _LOG_BYTES:
        raise ScoringError(f"the tests printed {len(log)} bytes; {_LOG_BYTES} is as much as is graded")
    return log


def _outcome(tests: Mapping[str, Mapping[str, Any]], *, resolved: bool) -> Outcome:
    fixed, kept = tests["FAIL_TO_PASS"], tests["PASS_TO_PASS"]
    failed = [*fixed["failure"], *kept["failure"]]
    more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
    return Outcome(
        status="resolved" if resolved else "unresolved",
        reason=Reason.RESOLVED if resolved else Reason.TESTS_FAILED,
        detail="" if resolved else f"not passed: {' '.join(failed[:5])}{more}",
        fail_to_pass=(len(fixed["success"]), len(fixed["success"]) + len(fixed["failure"])),
        pass_to_pass=(len(kept["success"]), len(kept["success"]) + len(kept["failure"])),
    )


def read_history(told: str) -> History:
    """What the look at a repository printed."""
    lines = [line.split() for line in told.splitlines()]
    if ["lacking"] in lines:
        return History(problem="the image's repository lacks the base commit")
    found = {words[0]: words[1] for words in lines if len(words) == 2}
    if not found.keys() >= {"ahead", "future"}:
        return History(problem="the image's git history could not be looked at")
    examples = tuple(f"{words[1]} of {words[2]}" for words in lines if words[:1] == ["such"])
    return History(int(found["ahead"]), int(found["future"]), examples)
