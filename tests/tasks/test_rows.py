"""Rows become tasks, or are refused by name: where the row lies, which column, what to do."""

import gzip
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.tasks.rows import image_of, read_tasks, task_of, test_list
from tests.bug_cases.parts import shared_case

test_list.__test__ = False  # type: ignore[attr-defined]

ROW = {
    "instance_id": "demo__Demo-1",
    "repo": "demo/demo",
    "base_commit": "a" * 40,
    "problem_statement": "It breaks.",
    "FAIL_TO_PASS": '["t.py::a"]',
    "PASS_TO_PASS": ["t.py::b"],
}


def rows(*names: str) -> list[dict[str, Any]]:
    return [{**ROW, "instance_id": name} for name in names]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- test lists (bug case 030)


def test_test_lists_of_the_shared_case_are_read_or_refused_by_name() -> None:
    folder = shared_case("030-list-or-string")
    expected = json.loads((folder / "expected_counts.json").read_text())
    lines = [json.loads(line) for line in (folder / "instances.jsonl").read_text().splitlines()]
    for line in lines:
        row, counts = {**ROW, **line}, expected[line["instance_id"]]
        if isinstance(counts, list):
            task = task_of(row, "x")
            assert [len(task.FAIL_TO_PASS), len(task.PASS_TO_PASS)] == counts
        elif counts.startswith("nothing to grade"):
            assert task_of(row, "x").FAIL_TO_PASS == ()
        else:
            said = refusal(lambda row=row: task_of(row, "x"))  # type: ignore[misc]
            assert line["instance_id"] in said and "_TO_PASS" in said


@pytest.mark.parametrize(
    "value", ["t.py::a", "['t.py::a']", '"t.py::a"', '"[\\"t.py::a\\"]"', [["t.py::b"]], [1], 7, "{}"]
)
def test_what_is_no_list_of_names_is_refused(value: object) -> None:
    assert "FAIL_TO_PASS" in refusal(lambda: task_of({**ROW, "FAIL_TO_PASS": value}, "x"))


def test_python_text_is_recognised() -> None:
    assert "write it as JSON" in refusal(lambda: test_list("['a']", "x"))


@settings(derandomize=True, deadline=None)
@given(st.lists(st.text()))
def test_a_list_and_its_json_text_are_the_same_tests(names: list[str]) -> None:
    assert test_list(names, "x") == test_list(json.dumps(names), "x") == tuple(names)


# --- columns


@pytest.mark.parametrize("column", ["instance_id", "repo", "base_commit", "problem_statement"])
@pytest.mark.parametrize("value", [None, "", 3])
def test_a_column_that_every_task_needs_is_named(column: str, value: object) -> None:
    assert refusal(lambda: task_of({**ROW, column: value}, "t.json, row 1")).startswith(
        f"t.json, row 1: no text in column '{column}'"
    )


def test_a_column_of_the_wrong_kind_is_named() -> None:
    assert "version" in refusal(lambda: task_of({**ROW, "version": 3.0}, "x"))


def test_both_generations_of_columns_are_kept_and_strange_ones_left_aside() -> None:
    more = {"version": "3.0", "test_patch": "d", "eval_script": "e", "log_parser": "p", "eval_type": "fail_only"}
    task = task_of({**ROW, **more, "hints_text": "h", "created_at": "2020"}, "x")
    assert {key: getattr(task, key) for key in more} == more


def test_tests_that_need_files_from_outside_are_refused() -> None:
    assert "image_assets" in refusal(
        lambda: task_of({**ROW, "image_assets": '{"test_patch": [{"path": "a.png"}]}'}, "x")
    )
    assert task_of({**ROW, "image_assets": "{}"}, "x").instance_id == "demo__Demo-1"


@pytest.mark.parametrize("column", ["image", "image_name", "docker_image"])
def test_an_image_that_the_row_names_is_taken(column: str) -> None:
    assert image_of({**ROW, column: "Mine:1"}) == "Mine:1"


def test_without_a_name_the_image_is_swebenchs() -> None:
    assert image_of(ROW) == "swebench/sweb.eval.x86_64.demo_1776_demo-1:latest"


def test_the_published_images_are_named_by_the_rule(shared_data: Path) -> None:
    with gzip.open(shared_data / "swebench/verified_instances.jsonl.gz", "rt") as file:
        published = [json.loads(line) for line in file]
    ours = [image_of({"instance_id": row["instance_id"]}) for row in published]
    assert len(published) == 500
    assert ours == [row["image"].removeprefix("docker.io/") for row in published]


# --- where rows come from


def write(path: Path, content: list[dict[str, Any]]) -> Path:
    kind = path.name.removesuffix(".gz")
    text = "\n".join(map(json.dumps, content)) if kind.endswith(".jsonl") else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.json.gz", "t.jsonl.gz"])
def test_a_local_file_is_read_in_its_order(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, rows("b__b-1", "a__a-1"))
    assert [task.instance_id for task in read_tasks(str(path), "test")] == ["b__b-1", "a__a-1"]


def test_an_object_of_rows_by_id_is_a_table_too(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"a__a-1": {**ROW, "instance_id": "a__a-1"}}))
    assert [task.instance_id for task in read_tasks(str(path), "test")] == ["a__a-1"]


def test_a_folder_holds_one_file_a_split(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", rows("a__a-1"))
    write(tmp_path / "dev.json", rows("b__b-1"))
    assert [task.instance_id for task in read_tasks(str(tmp_path), "dev")] == ["b__b-1"]
    assert "train.json" in refusal(lambda: read_tasks(str(tmp_path), "train"))
    write(tmp_path / "test.json", rows("a__a-1"))
    assert "both of split 'test'" in refusal(lambda: read_tasks(str(tmp_path), "test"))


def test_parquet_is_read_where_pyarrow_is_and_asked_for_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        path.write_bytes(b"PAR1")
        assert "needs pyarrow: pip install" in refusal(lambda: read_tasks(str(path), "test"))
        return
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist(rows("a__a-1")), path)
    assert [task.FAIL_TO_PASS for task in read_tasks(str(tmp_path), "test")] == [("t.py::a",)]


def test_rows_may_say_their_split(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{**rows("a__a-1")[0], "split": "dev"}, {**rows("b__b-1")[0], "split": "test"}])
    assert [task.instance_id for task in read_tasks(str(path), "dev")] == ["a__a-1"]
    assert "its splits: dev, test" in refusal(lambda: read_tasks(str(path), "train"))


def test_an_id_that_is_there_twice_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", rows("a__a-1", "b__b-1", "a__a-1"))
    assert "row 3: a__a-1 is there twice" in refusal(lambda: read_tasks(str(path), "test"))


BROKEN: Mapping[str, tuple[str, bytes, str]] = {
    "no JSON": ("t.json", b"{", "not valid JSON"),
    "no JSON on line 2": ("t.jsonl", json.dumps(ROW).encode() + b"\n{", "t.jsonl:2: not valid JSON"),
    "a number": ("t.json", b"7", "a list of rows"),
    "a row that is no object": ("t.json", b"[7]", "row 1: a row is an object"),
    "no text": ("t.json", b"\xff\xfe", "cannot be read"),
    "no gzip": ("t.json.gz", b"[]", "cannot be read"),
    "nothing in it": ("t.json", b"[]", "no rows of split 'test'"),
    "another ending": ("t.csv", b"a,b", "ends in .json, .jsonl, .parquet"),
}


@pytest.mark.parametrize("fault", list(BROKEN))
def test_a_file_that_cannot_be_meant_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    name, content, said = BROKEN[fault]
    (tmp_path / name).write_bytes(content)
    assert said in refusal(lambda: read_tasks(str(tmp_path / name), "test"))


def test_a_source_that_is_not_there_is_refused_by_name() -> None:
    assert "no file none/t.jsonl" in refusal(lambda: read_tasks("none/t.jsonl", "test"))
    assert "known names: verified, lite, full" in refusal(lambda: read_tasks("verfied", "test"))


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="datasets is installed here")
def test_the_hub_asks_for_its_package() -> None:
    assert "pip install 'forkroll[swebench]'" in refusal(lambda: read_tasks("verified", "test"))
