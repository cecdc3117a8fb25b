"""Verdicts on rollouts that lie in a file beside their logs, as SWE-bench's grading leaves them.

Three forms: a summary with lists `resolved_ids` and `unresolved_ids`; an object by instance with `resolved` in each;
JSON lines, or a list, of objects with `instance_id` and `resolved`. What none of them names has no verdict.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import UsageError

UNRESOLVED = ("unresolved_ids", "empty_patch_ids")
"""Lists of a summary: an empty patch is not run, and resolves nothing. `error_ids` are no verdicts."""


def read_verdicts(path: Path) -> dict[str, bool]:
    """Instance -> resolved. UsageError where the file is not of these forms, or says two things of one instance."""
    verdicts: dict[str, bool] = {}
    for task_id, resolved in _told(path):
        if verdicts.setdefault(task_id, resolved) is not resolved:
            raise UsageError(f"{path}: says of {task_id} that it is resolved and that it is not")
    if not verdicts:
        raise UsageError(f"{path}: holds no verdict; it takes a report of SWE-bench's grading")
    return verdicts


def _told(path: Path) -> Iterator[tuple[str, bool]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    try:
        content = json.loads(text)
    except ValueError:
        yield from _from_lines(path, text)
        return
    if isinstance(content, list):
        yield from _from_rows(content)
    elif isinstance(content, Mapping) and isinstance(content.get("resolved_ids"), list):
        yield from ((str(task_id), True) for task_id in content["resolved_ids"])
        for key in UNRESOLVED:
            yield from ((str(task_id), False) for task_id in content.get(key) or ())
    elif isinstance(content, Mapping):
        yield from _from_rows([content, *_by_instance(content)])


def _by_instance(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for task_id, entry in content.items():
        if isinstance(entry, Mapping):
            yield {**entry, "instance_id": task_id}


def _from_lines(path: Path, text: str) -> Iterator[tuple[str, bool]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise UsageError(f"{path}:{number}: not JSON: {error}") from None
    yield from _from_rows(rows)


def _from_rows(rows: list[Any]) -> Iterator[tuple[str, bool]]:
    for row in rows:
        if isinstance(row, Mapping) and isinstance(row.get("resolved"), bool) and "instance_id" in row:
            yield str(row["instance_id"]), row["resolved"]
