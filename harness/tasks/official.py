"""The official grader: the swebench package in a process of its own, started on first use and asked many times.

The interpreter that has the package is $FORKROLL_SWEBENCH_PYTHON, else the one that runs us. Importing the package
takes seconds and pulls in much; here it costs that once, and nothing of it enters this process.
"""

import base64
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import ConfigError, ScoringError
from harness.record import Task
from harness.tasks import swebench_worker

PYTHON_VARIABLE = "FORKROLL_SWEBENCH_PYTHON"
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME")
"""Variables that the process gets: keys of models are none of its business."""


@dataclass(frozen=True)
class Package:
    """What the process found installed."""

    version: str
    apply: tuple[str, ...]
    """Commands that it tries in this order, the patch file's name after each."""
    cleans: bool
    """The tree is reset between two tries."""


class Official:
    """Asks the swebench package. Threads may share it; questions are answered one at a time (milliseconds each)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._package: Package | None = None

    @property
    def package(self) -> Package:
        """The installed package; the process is started where it was not. ConfigError when there is none."""
        if self._package is None:
            said = self._ask({"op": "hello"})
            self._package = Package(said["version"], tuple(said["apply"]), said["cleans"])
        return self._package

    def script(self, task: Task) -> str:
        """The script that runs the hidden tests of `task`. ConfigError names a column that it would need."""
        said = self._ask({"op": "script", "task": task.model_dump(mode="json")})
        return str(said["script"])

    def report(self, task: Task, log: bytes) -> dict[str, Any]:
        """The package's report on the output of that script."""
        question = {"op": "grade", "task": task.model_dump(mode="json"), "log": base64.b64encode(log).decode()}
        report: dict[str, Any] = self._ask(question)["report"]
        return report

    def resolution(self, tests_status: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
        """RESOLVED_FULL, RESOLVED_PARTIAL or RESOLVED_NO, by the package's rule, of the tests of a report."""
        return str(self._ask({"op": "resolve", "tests_status": tests_status})["status"])

    def close(self) -> None:
        """End the process. A later question starts another."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.communicate()  # it ends with its stdin

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            if self._process is None:
                self._process = _start()
            said = _exchange(self._process, json.dumps(question))
            if said is None:
                gone, self._process = self._process, None
                gone.communicate()
                raise ScoringError(f"the process that grades ended with code {gone.returncode} before it answered")
        if "error" not in said:
            return said
        if said["column"] is not None:
            raise ConfigError(f"{question['task']['instance_id']}: {said['error']}, which its row lacks")
        raise ScoringError(said["error"])


def _exchange(process: "subprocess.Popen[str]", line: str) -> dict[str, Any] | None:
    """The answer to one line; None when the process is gone."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    answer = process.stdout.readline()
    return json.loads(answer) if answer.endswith("\n") else None


def interpreter() -> str:
    """The Python that has swebench. ConfigError when none is known."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise ConfigError(f"{PYTHON_VARIABLE} names {named}, which cannot be run")
        return os.path.abspath(found)
    if importlib.util.find_spec("swebench") is None:
        raise ConfigError(
            "grading tasks of `swebench` needs the package swebench: pip install 'forkroll[swebench]', "
            f"or name a Python that has it in {PYTHON_VARIABLE}"
        )
    return sys.executable


def _start() -> "subprocess.Popen[str]":
    """The process, known to have the package."""
    python = interpreter()
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [python, swebench_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            encoding="utf-8",
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            cwd=tempfile.gettempdir(),  # the package reads a file `.env` where it is started
            start_new_session=True,  # Ctrl-C is the driver's business
        )
        if _exchange(process, json.dumps({"op": "hello"})) is not None:
            return process
        process.communicate()
        complaints.seek(0)
        last = complaints.read().decode("utf-8", "replace").strip().split("\n")[-1]
    raise ConfigError(f"{python} cannot use the package swebench: {last}; see {PYTHON_VARIABLE}")
