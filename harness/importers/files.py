"""Documents from files and folders: one JSON document a file, or JSON lines with a document or a wrapped one each.

A wrapped document is `{"traj": ..., "instance_id": ..., "run": ..., "resolved": ...}`. Files may be gzipped. What
cannot be read is a refusal that names file and line; the rest is read all the same.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.importers.protocol import Document, Refused
from harness.record import clean_text

LOGS = (".traj.json", ".traj", ".traj.json.gz", ".traj.gz")
"""Ends of the names that a folder is searched for; a file that is named itself may be called anything."""
LINES = (".jsonl", ".jsonl.gz")

_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


def documents(paths: Iterable[Path]) -> Iterator[Document | Refused]:
    """What `paths` hold, in order; folders are searched through, by name."""
    for path in paths:
        if path.is_dir():
            yield from _folder(path)
        else:
            yield from _file(path)


def _folder(path: Path) -> Iterator[Document | Refused]:
    found = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(LOGS + LINES))
    if not found:
        yield Refused(str(path), "", f"no file in it ends in {', '.join(LOGS + LINES)}")
    for file in found:
        yield from _file(file)


def _file(path: Path) -> Iterator[Document | Refused]:
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opener(path, "rb") as stream:
            if not path.name.endswith(LINES):
                yield _document(path, stream.read(), "")
                return
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield _document(path, line, f":{number}")
    except FileNotFoundError:
        yield Refused(str(path), "", "there is no such file")
    except (OSError, EOFError, zlib.error) as error:  # gzip raises all three
        yield Refused(f"{path.name}:{number + 1}" if number else path.name, "", f"cannot be read: {error}")


def _document(path: Path, raw: bytes, line: str) -> Document | Refused:
    name = path.name + line
    try:
        content = json.loads(raw)
    except ValueError as error:
        return Refused(name, "", _why_unreadable(raw, error))
    except RecursionError:
        return Refused(name, "", "nested too deeply")
    wrapped = content if isinstance(content, dict) and "traj" in content else None
    inner = content if wrapped is None else wrapped["traj"]
    digest = hashlib.sha256(json.dumps(inner, indent=2).encode("utf-8")).hexdigest()
    if _HALF_PAIR.search(raw):
        inner = _cleaned(inner)
    if wrapped is None:
        return Document(name, inner, digest, task_id=None if line else _task_of(path))
    resolved, task_id, run = wrapped.get("resolved"), wrapped.get("instance_id"), wrapped.get("run")
    return Document(
        name=name,
        content=inner,
        sha256=digest,
        task_id=task_id if isinstance(task_id, str) else None,
        run=run if isinstance(run, str) else "",
        resolved=resolved if isinstance(resolved, bool) else None,
    )


def _why_unreadable(raw: bytes, error: ValueError) -> str:
    if not raw.strip():
        return "empty"
    cut = isinstance(error, json.JSONDecodeError) and not raw.rstrip().endswith((b"}", b"]"))
    return f"not JSON, or cut off: {error}" if cut else f"not JSON: {error}"


def _task_of(path: Path) -> str | None:
    """The instance that a file's name says: both SWE-agent and mini-swe-agent name their logs by it."""
    end = next((end for end in sorted(LOGS, key=len, reverse=True) if path.name.endswith(end)), None)
    return path.name.removesuffix(end) if end else None


def _cleaned(value: Any) -> Any:
    """`value` with every text in it cleaned of lone surrogates."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _cleaned(item) for key, item in value.items()}
    return value
