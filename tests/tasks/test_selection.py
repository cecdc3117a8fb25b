"""Which tasks a study takes: the paper's lists come out, and the order of operations is what it says."""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import TasksSection
from harness.errors import ConfigError
from harness.record import Task
from harness.tasks.rows import read_tasks
from harness.tasks.selection import select

LABELS = ("<15 min fix", "1-4 hours")


def tasks_named(names: Sequence[str]) -> list[Task]:
    return [
        Task(
            instance_id=name,
            repo=name.split("-")[0],
            base_commit="0" * 40,
            problem_statement=f"About {name}.",
            difficulty=LABELS[len(name) % 2],
        )
        for name in names
    ]


NAMES = [f"{repo}-{number}" for repo in ("a__a", "b__b") for number in (1, 2, 10, 11, 100)]
TASKS = tasks_named(NAMES)


def ids(tasks: Sequence[Task]) -> list[str]:
    return [task.instance_id for task in tasks]


def chosen(**keys: object) -> list[str]:
    return ids(select(TASKS, TasksSection.model_validate(keys)))


def of_the_paper(shared_data: Path, run: str) -> set[str]:
    """The instances of a run's bases in the paper's release."""
    summary = json.loads((shared_data / "replay_gap/summary.json").read_text())
    return {row["instance_id"] for row in summary if row["run"] == run and row["arm"] == "base"}


def verified(shared_data: Path) -> list[Task]:
    return read_tasks(str(shared_data / "swebench/verified_instances.jsonl.gz"), "test")


def test_the_papers_full_tier(shared_data: Path) -> None:
    found = select(verified(shared_data), TasksSection(shuffle=42, count=30))
    assert len(found) == 30
    for run in ("pilot30", "pilot30_rev"):
        assert set(ids(found)) == of_the_paper(shared_data, run)


def test_the_papers_easy_tier_is_filtered_before_it_is_shuffled(shared_data: Path) -> None:
    wanted = TasksSection(difficulty=("<15 min fix",), shuffle=42, slice="0:30")
    found = set(ids(select(verified(shared_data), wanted)))
    assert found == of_the_paper(shared_data, "easy_rev")
    assert found - of_the_paper(shared_data, "easy") == {"matplotlib__matplotlib-24149"}  # which has no base there
    other = set(ids(select(verified(shared_data), wanted.model_copy(update={"shuffle_first": True}))))
    assert other != found


def test_verified_lies_in_the_order_of_its_ids(shared_data: Path) -> None:
    every = ids(verified(shared_data))
    assert every == sorted(every) and len(every) == 500


def test_shuffling_first_is_what_minis_batch_runner_does() -> None:
    """Its rule: sort by id, seed 42, shuffle; then the ids that the filter matches; then the slice."""
    theirs = sorted(NAMES)
    random.seed(42)
    random.shuffle(theirs)
    theirs = [name for name in theirs if re.match("b__.*", name)][1:4]
    assert chosen(shuffle=42, shuffle_first=True, match="b__.*", slice="1:4") == theirs
    assert chosen(shuffle=42, match="b__.*", slice="1:4") != theirs


@settings(derandomize=True, deadline=None)
@given(st.permutations(NAMES), st.integers(0, 2**32), st.booleans())
def test_the_order_of_a_file_does_not_enter_a_shuffle(names: list[str], seed: int, first: bool) -> None:
    wanted = TasksSection(shuffle=seed, shuffle_first=first, match="a__", count=3)
    assert ids(select(tasks_named(names), wanted)) == ids(select(TASKS, wanted))


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9))
def test_more_tasks_extend_fewer(seed: int, count: int) -> None:
    assert chosen(shuffle=seed, count=count + 1)[:count] == chosen(shuffle=seed, count=count)


@settings(derandomize=True, deadline=None)
@given(st.one_of(st.none(), st.integers(-12, 12)), st.one_of(st.none(), st.integers(-12, 12)))
def test_a_slice_is_pythons(start: int | None, stop: int | None) -> None:
    text = f"{'' if start is None else start}:{'' if stop is None else stop}"
    expected = NAMES[start:stop]
    if expected:
        assert chosen(slice=text) == expected
    else:
        with pytest.raises(ConfigError, match="leave none"):
            chosen(slice=text)


def test_filters_are_all_met() -> None:
    found = select(TASKS, TasksSection(repos=("a__a",), difficulty=(LABELS[0],), match=r".*-1\d*$"))
    assert found
    assert all(task.repo == "a__a" and task.difficulty == LABELS[0] and "-1" in task.instance_id for task in found)


def test_named_ids_keep_their_order_unless_they_are_shuffled() -> None:
    assert chosen(ids=["b__b-2", "a__a-1"]) == ["b__b-2", "a__a-1"]
    assert chosen(ids=["b__b-2", "a__a-1"], shuffle=1) == chosen(ids=["a__a-1", "b__b-2"], shuffle=1)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"ids": ["nope"]}, "has no task 'nope'"),
        ({"ids": ["a__a-1", "a__a-1"]}, "'a__a-1' twice"),
        ({"repos": ["c/c"]}, "`tasks.repos`: no task has 'c/c'; there are: a__a, b__b"),
        ({"difficulty": ["easy"]}, "`tasks.difficulty`: no task has 'easy'; there are: 1-4 hours, <15 min fix"),
        ({"match": "("}, "`tasks.match`: '(' is no regular expression"),
        ({"match": "zzz"}, "leave none"),
    ],
)
def test_a_selection_that_cannot_be_meant_is_refused(keys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        chosen(**keys)


def test_text_is_added_to_the_end_of_every_problem_statement() -> None:
    (task,) = select(TASKS, TasksSection(ids=("a__a-1",), append="Be brief.\n"))
    assert task.problem_statement == "About a__a-1.\n\nBe brief.\n"
