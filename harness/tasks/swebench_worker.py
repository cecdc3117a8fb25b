"""The swebench package, asked from outside: one JSON question a line on stdin, one JSON answer a line on stdout.

Runs as a program of its own, in whatever interpreter has swebench 4 or 5, and knows nothing of the rest of forkroll.
Verdicts are the package's: its parsers, its rules, its functions.

    {"op": "hello"}                                 -> {"version", "apply", "cleans"}
    {"op": "script", "task": {...}}                 -> {"script"}: the evaluation script of a task
    {"op": "grade", "task": {...}, "log": base64}   -> {"report"}: of that task, with the status of each test
    {"op": "resolve", "tests_status": {...}}        -> {"status"}: what the package's rule says of a report's tests
    anything that fails                             -> {"error", "column"}: what was wrong; a missing column, or null
"""

import base64
import json
import os
import sys
import tempfile
from typing import Any


class Missing(Exception):
    """A column that this version of the package needs and the task lacks."""


def need(task: dict[str, Any], *columns: str) -> None:
    """Missing for the first of `columns` that `task` has no value for."""
    for column in columns:
        if task.get(column) in (None, ""):
            raise Missing(column)


class Five:
    """swebench 5: a task carries its own script and the name of its parser."""

    cleans = True

    def script(self, task: dict[str, Any]) -> str:
        """The task's own script, made to tell the test command's exit code."""
        need(task, "eval_script")
        return str(self._spec(task).eval_script)

    def spec(self, task: dict[str, Any]) -> Any:
        """As much of the package's object for a task as grading looks at."""
        need(task, "log_parser", "eval_type")
        return self._spec(task)

    def _spec(self, task: dict[str, Any]) -> Any:
        from swebench.harness.utils import make_test_spec

        absent = {"image": "", "eval_script": "", "log_parser": "", "eval_type": "", "version": ""}
        return make_test_spec({**absent, **{key: value for key, value in task.items() if value is not None}})


class Four:
    """swebench 4: scripts and parsers are constants of the package, by repository and version."""

    cleans = False

    def script(self, task: dict[str, Any]) -> str:
        """The package's script, made without the parts of a task that need a network: those that build images."""
        from swebench.harness.test_spec.create_scripts import make_eval_script_list

        need(task, "version", "test_patch")
        known = self._versions(task)
        if task["version"] not in known:
            raise ValueError(f"it knows no version {task['version']!r} of {task['repo']}")
        commit, patch = task["base_commit"], task["test_patch"]
        lines = make_eval_script_list(task, known[task["version"]], "testbed", "/testbed", commit, patch)
        return str(self._spec(task, task["version"], lines).eval_script)

    def spec(self, task: dict[str, Any]) -> Any:
        """As much of the package's object for a task as grading looks at.

        Grading looks up what is known of a version and uses none of it: any known version will do.
        """
        known = self._versions(task)
        return self._spec(task, task.get("version") if task.get("version") in known else next(iter(known)), [])

    def _versions(self, task: dict[str, Any]) -> dict[str, Any]:
        from swebench.harness.constants import MAP_REPO_VERSION_TO_SPECS

        known: dict[str, Any] = MAP_REPO_VERSION_TO_SPECS.get(task["repo"], {})
        if not known:
            raise ValueError(f"it knows no repository {task['repo']!r}")
        return known

    def _spec(self, task: dict[str, Any], version: Any, script: list[str]) -> Any:
        from swebench.harness.test_spec.test_spec import TestSpec

        return TestSpec(
            instance_id=task["instance_id"],
            repo=task["repo"],
            version=version,
            repo_script_list=[],
            eval_script_list=script,
            env_script_list=[],
            arch="x86_64",
            FAIL_TO_PASS=list(task["FAIL_TO_PASS"]),
            PASS_TO_PASS=list(task["PASS_TO_PASS"]),
            language="py",
            docker_specs={},
            namespace=None,
        )


class Package:
    """The installed package."""

    def __init__(self) -> None:
        import swebench
        from swebench.harness import run_evaluation

        self.version = str(swebench.__version__)
        self.commands = list(run_evaluation.GIT_APPLY_CMDS)
        self.generation: Four | Five = Five() if int(self.version.split(".")[0]) >= 5 else Four()

    def hello(self, question: dict[str, Any]) -> dict[str, Any]:
        """What is installed, and in what order it tries to apply a patch."""
        return {"version": self.version, "apply": self.commands, "cleans": self.generation.cleans}

    def script(self, question: dict[str, Any]) -> dict[str, Any]:
        """What runs a task's hidden tests."""
        return {"script": self.generation.script(question["task"])}

    def grade(self, question: dict[str, Any]) -> dict[str, Any]:
        """The report on a test log."""
        from swebench.harness.grading import get_eval_report

        task = question["task"]
        prediction = {"instance_id": task["instance_id"], "model_name_or_path": "-", "model_patch": "-"}
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as log:
            log.write(base64.b64decode(question["log"]).decode("utf-8", "replace"))
            log.flush()
            report = get_eval_report(self.generation.spec(task), prediction, log.name, include_tests_status=True)
        return {"report": report[task["instance_id"]]}

    def resolve(self, question: dict[str, Any]) -> dict[str, Any]:
        """The package's rule over the tests of a finished report."""
        from swebench.harness.grading import get_resolution_status

        return {"status": get_resolution_status(question["tests_status"])}


OPERATIONS = ("hello", "script", "grade", "resolve")


def answer(package: Package, question: dict[str, Any]) -> dict[str, Any]:
    """The answer to one question; an error is an answer too."""
    try:
        operation = question["op"]
        if operation not in OPERATIONS:
            raise ValueError(f"unknown operation {operation!r}")
        said: dict[str, Any] = getattr(package, operation)(question)
        return said
    except Missing as missing:
        return {"error": f"swebench {package.version} needs the column {missing}", "column": str(missing)}
    except Exception as error:
        return {"error": f"swebench {package.version}: {type(error).__name__}: {error}", "column": None}


def main() -> None:
    """Answer until stdin ends. What the package prints goes to stderr."""
    del sys.path[0]  # our own folder, in which a module of ours bears the package's name
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    package = Package()
    for line in sys.stdin:
        answers.write(json.dumps(answer(package, json.loads(line))) + "\n")
        answers.flush()
    os._exit(0)  # the package's own ending takes seconds


if __name__ == "__main__":
    main()
