"""Rows of a table of tasks, from a file, a folder or the Hugging Face hub, and each row as a Task.

A row that cannot be meant is refused by name: where it lies, which column, what to do. Nothing is guessed: a test
list is a list of strings, or the JSON text of one.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.errors import ConfigError
from harness.record import Task

ALIASES = {
    "verified": "SWE-bench/SWE-bench_Verified",
    "lite": "SWE-bench/SWE-bench_Lite",
    "full": "SWE-bench/SWE-bench",
}
"""Short names of data sets on the hub."""

KINDS = (".json", ".jsonl", ".parquet")
_REQUIRED = ("instance_id", "repo", "base_commit", "problem_statement")
_TEXTS = ("version", "difficulty", "patch", "test_patch", "eval_script", "log_parser", "eval_type")
_IMAGES = ("image", "image_name", "docker_image")
_INSTALL = "pip install 'forkroll[swebench]'"


def read_tasks(source: str, split: str) -> list[Task]:
    """The tasks of `source`, in its order. ConfigError names the row, the column and what to do."""
    tasks: dict[str, Task] = {}
    for number, row in enumerate(_of_split(read_rows(source, split), split, source), 1):
        task = task_of(row, f"{source}, row {number}")
        if task.instance_id in tasks:
            raise ConfigError(f"{source}, row {number}: {task.instance_id} is there twice; keep one of the two rows")
        tasks[task.instance_id] = task
    return list(tasks.values())


def _of_split(rows: Iterable[Mapping[str, Any]], split: str, source: str) -> list[Mapping[str, Any]]:
    """Rows may say which split they are of: then only those of `split` are taken."""
    every = list(rows)
    there = {str(row["split"]) for row in every if row.get("split") is not None}
    chosen = [row for row in every if row.get("split") in (None, split)]
    if not chosen:
        known = f"; its splits: {', '.join(sorted(there))}" if there else ""
        raise ConfigError(f"{source}: no rows of split {split!r}{known}")
    return chosen


# --- where rows come from


def read_rows(source: str, split: str) -> Iterable[Mapping[str, Any]]:
    """The rows of `source` as they are."""
    path = Path(source)
    if path.is_dir():
        return _read_folder(path, split)
    if path.is_file():
        return _read_file(path)
    if _kind(path) is not None:
        raise ConfigError(f"`tasks.source`: no file {source}")
    name = ALIASES.get(source, source)
    if name.count("/") != 1:
        raise ConfigError(
            f"`tasks.source`: no file or folder {source!r}; known names: {', '.join(ALIASES)}, OWNER/NAME"
        )
    return _from_hub(name, split)


def is_table(name: str) -> bool:
    """`name` is that of a table of tasks, by its ending, or of a folder."""
    return _kind(Path(name)) is not None or Path(name).is_dir()


def _kind(path: Path) -> str | None:
    """.json, .jsonl or .parquet; None for any other name."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    return suffix if suffix in KINDS else None


def _read_folder(folder: Path, split: str) -> Iterable[Mapping[str, Any]]:
    """The one file `<split>.<kind>` of a folder, or a data set that `datasets` saved there."""
    found = [path for path in sorted(folder.iterdir()) if path.name.split(".")[0] == split and _kind(path)]
    if len(found) == 1:
        return _read_file(found[0])
    if found:
        raise ConfigError(
            f"{folder}: {found[0].name} and {found[1].name} are both of split {split!r}; name one as source"
        )
    if (folder / split / "dataset_info.json").is_file():
        return list(_datasets().load_from_disk(str(folder / split)))
    raise ConfigError(f"{folder}: no {split}.json, {split}.jsonl or {split}.parquet (.gz too), and no saved data set")


def _read_file(path: Path) -> Iterable[Mapping[str, Any]]:
    kind = _kind(path)
    if kind is None:
        raise ConfigError(f"{path}: a table of tasks ends in {', '.join(KINDS)} or one of them and .gz")
    try:
        if kind == ".parquet":
            return _read_parquet(path)
        text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return list(_json_lines(path, text)) if kind == ".jsonl" else _json_table(path, text)


def _json_lines(path: Path, text: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _row(_parsed(line, f"{path}:{number}"), f"{path}:{number}")


def _json_table(path: Path, text: str) -> list[Mapping[str, Any]]:
    content = _parsed(text, str(path))
    if isinstance(content, dict):
        content = list(content.values())
    if not isinstance(content, list):
        raise ConfigError(f"{path}: a JSON table is a list of rows, or an object of rows by id")
    return [_row(row, f"{path}, row {number}") for number, row in enumerate(content, 1)]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON: {error}") from None


def _row(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a row is an object, not {type(value).__name__}")
    return value


def _read_parquet(path: Path) -> list[Mapping[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"{path}: reading parquet needs pyarrow: {_INSTALL}") from None
    rows: list[Mapping[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def _from_hub(name: str, split: str) -> list[Mapping[str, Any]]:
    try:
        return list(_datasets().load_dataset(name, split=split))
    except (OSError, ValueError) as error:  # what the package raises without a network, or for an unknown name or split
        raise ConfigError(f"`tasks.source`: {name}, split {split!r}: {' '.join(str(error).split())}") from None


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError(f"data sets of the Hugging Face hub need the package datasets: {_INSTALL}") from None
    return datasets


# --- a row as a task


def task_of(row: Mapping[str, Any], where: str) -> Task:
    """`row` as a Task; columns that forkroll does not use are left aside."""
    missing = [column for column in _REQUIRED if not isinstance(row.get(column), str) or not row[column]]
    if missing:
        raise ConfigError(f"{where}: no text in column {missing[0]!r}, which every task needs")
    where = f"{where} ({row['instance_id']})"
    if _filled(row.get("image_assets")):
        raise ConfigError(f"{where}: `image_assets`: tests that need images from outside cannot be graded here")
    texts = {column: row[column] for column in _TEXTS if row.get(column) is not None}
    try:
        return Task(
            **{column: row[column] for column in _REQUIRED},
            **texts,
            image=image_of(row),
            FAIL_TO_PASS=test_list(row.get("FAIL_TO_PASS"), f"{where}: FAIL_TO_PASS"),
            PASS_TO_PASS=test_list(row.get("PASS_TO_PASS"), f"{where}: PASS_TO_PASS"),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{where}: {first['loc'][0]}: {first['msg']}") from None


def _filled(assets: Any) -> bool:
    return assets not in (None, "", "{}", {}, "null")


def test_list(value: Any, where: str) -> tuple[str, ...]:
    """Names of tests: a list of strings, or the JSON text of one; nothing (null or "") is no tests."""
    if value is None or value == "":
        return ()
    names = _listed(value, where)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where}: a list of test names is wanted, not {_brief(value)}")
    return tuple(names)


def _listed(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return list(value) if isinstance(value, Sequence) else value
    try:
        return json.loads(value)
    except ValueError:
        python = " (it looks like Python's way of writing a list: write it as JSON)" if value[:1] in "[(" else ""
        raise ConfigError(f"{where}: a list or the JSON text of one is wanted, not {_brief(value)}{python}") from None


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def image_of(row: Mapping[str, Any]) -> str:
    """The task's Docker image: what the row names as image, image_name or docker_image; else swebench 4's name for
    it, which is lower case throughout and has "_1776_" for the "__" of the id."""
    named = next((row[column] for column in _IMAGES if row.get(column)), None)
    if named is not None:
        return str(named)
    return f"swebench/sweb.eval.x86_64.{row['instance_id'].replace('__', '_1776_')}:latest".lower()
