"""Real verdicts of the swebench package: test logs and reports of finished runs, from the development data."""

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.record import Task

ROOT = Path(__file__).parents[2]
GENERATIONS = {"4.1.0": "4", "5.0.2": "5"}
"""Version of swebench -> what scripts/setup-swebench calls it."""

PARSERS = {
    "astropy/astropy": "parse_log_pytest_v2",
    "django/django": "parse_log_django",
    "marshmallow-code/marshmallow": "parse_log_pytest",
    "pvlib/pvlib-python": "parse_log_pytest",
    "pydicom/pydicom": "parse_log_pytest_options",
    "pylint-dev/astroid": "parse_log_pytest",
    "pyvista/pyvista": "parse_log_pytest",
    "sqlfluff/sqlfluff": "parse_log_pytest",
}
"""Repository -> swebench's parser of its logs: a column that swebench 5 wants and these records lack."""


@dataclass(frozen=True)
class RecordedLog:
    """A test log and what was made of it."""

    task: Task
    log: bytes
    resolved: bool


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a gzipped JSON Lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def recorded_logs(data: Path) -> list[RecordedLog]:
    """The logs of all runs that have any."""
    known = {row["instance_id"]: row for row in lines(data / "swebench/lite_instances.jsonl.gz")}
    rows = lines(data / "swebench/test_outputs_deepseek.jsonl.gz")
    return [RecordedLog(_task(known[row["instance_id"]]), row["test_output"].encode(), row["resolved"]) for row in rows]


def _task(row: Mapping[str, Any]) -> Task:
    return Task(
        instance_id=row["instance_id"],
        repo=row["repo"],
        base_commit=row["base_commit"],
        problem_statement=row["problem_statement"],
        test_patch=row["test_patch"],
        FAIL_TO_PASS=tuple(row["FAIL_TO_PASS"]),
        PASS_TO_PASS=tuple(row["PASS_TO_PASS"]),
        log_parser=PARSERS[row["repo"]],
        eval_type="pass_and_fail",
    )


def recorded_reports(data: Path) -> list[dict[str, Any]]:
    """The reports of all runs."""
    return [row["report"] for row in lines(data / "swebench/eval_reports.jsonl.gz")]


def python_with(version: str) -> Path | None:
    """The interpreter of the environment that scripts/setup-swebench made for that version; None: it did not."""
    folder = Path(os.environ.get("FORKROLL_SWEBENCH_ENVIRONMENTS", ROOT))
    python = folder / f".venv-swebench{GENERATIONS[version]}" / "bin/python"
    return python if python.exists() else None
