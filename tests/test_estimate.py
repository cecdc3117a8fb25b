"""What a plan says before the run: bounds that no run passes, expectations that only stated rates give."""

import math
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import Study, load_study, validate
from harness.estimate import Estimate, estimate, estimate_lines
from harness.record import Task
from harness.sandbox.protocol import Image
from harness.sweep import plan_bases, plan_branches
from harness.tasks.pocket import Pocket
from tests.made import make_base

RULES = st.one_of(
    st.tuples(
        st.sampled_from(["paper_fraction", "fraction", "call_fraction"]),
        st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), min_size=1, max_size=3, unique=True),
    ),
    st.tuples(st.just("absolute"), st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True)),
    st.tuples(st.just("every"), st.lists(st.integers(1, 6), min_size=1, max_size=1)),
)
CALLS = 12


def study_with(**more: Any) -> Study:
    content = {
        "name": "s",
        "seed": 1,
        "models": {name: {"client": "scripted", "commands": ["ls"]} for name in ("a", "b")},
        "directions": {"up": {"base": "a", "swap": "b"}, "down": {"base": "b", "swap": "a"}},
        "forks": {"rule": "absolute", "at": [1]},
        "limits": {"calls": CALLS},
    }
    return validate(content | more, "test")


def tasks_named(count: int) -> list[Task]:
    made = (f"t{number}" for number in range(count))
    return [Task(instance_id=name, repo="r", base_commit="c", problem_statement="p") for name in made]


def named(task: Task) -> Image:
    """An image that nobody pulls."""
    return Image(name=task.instance_id, tree=None, docker=f"registry.invalid/{task.instance_id}")


def of(study: Study, count: int = 3, present: Any = None) -> Estimate:
    return estimate(study, tasks_named(count), named, present)


@settings(derandomize=True, deadline=None)
@given(rule=RULES, lengths=st.lists(st.integers(1, CALLS), min_size=4, max_size=4), replicates=st.integers(1, 3))
def test_no_plan_passes_the_bounds(rule: tuple[str, list[float]], lengths: list[int], replicates: int) -> None:
    study = study_with(forks={"rule": rule[0], "at": rule[1]}, replicates=replicates)
    tasks = tasks_named(2)
    cells = plan_bases(study, tasks)
    bases = {
        cell.id: make_base(["ls"] * length, task=cell.task.instance_id, agent=cell.agent)
        for cell, length in zip(cells, lengths, strict=True)
    }
    branches = plan_branches(study, tasks, bases)
    found = of(study, 2)
    assert found.bases == len(bases)
    assert found.branches_at_most is not None and found.calls_at_most is not None
    assert len(branches) <= found.branches_at_most
    made = sum(map(len, (base.steps for base in bases.values())))
    assert made + sum(CALLS - cell.fork.step + 1 for cell in branches) <= found.calls_at_most


def test_the_expectation_is_the_plan_of_bases_that_have_the_stated_length() -> None:
    study = study_with(
        forks={"rule": "paper_fraction", "at": [0.3, 0.7]}, rates={"calls_per_rollout": 10, "input_tokens_per_call": 7}
    )
    bases = {
        cell.id: make_base(["ls"] * 10, task=cell.task.instance_id, agent=cell.agent)
        for cell in plan_bases(study, tasks_named(3))
    }
    branches = plan_branches(study, tasks_named(3), bases)
    found = of(study)
    assert found.calls == 6 * 10 + sum(10 - cell.fork.step + 1 for cell in branches)
    assert found.input_tokens == found.calls * 7
    assert found.output_tokens is None and found.gpu_hours is None


def test_gpu_hours_are_reading_and_writing_at_the_stated_rates() -> None:
    rates = {
        "calls_per_rollout": 10,
        "input_tokens_per_call": 1000,
        "output_tokens_per_call": 100,
        "input_tokens_per_second": 2000,
        "output_tokens_per_second": 50,
    }
    found = of(study_with(rates=rates))
    assert found.calls is not None and found.gpu_hours is not None
    assert math.isclose(found.gpu_hours, found.calls * (0.5 + 2.0) / 3600)


def test_what_is_not_stated_is_said_to_be_absent() -> None:
    study = study_with(limits={"calls": None}, forks={"rule": "every", "at": [2]})
    found = of(study)
    assert found.forks_at_most is None and found.calls_at_most is None and found.calls is None
    text = "\n".join(estimate_lines(study, found))
    assert "no bound on forks" in text
    assert "the study states no `rates`" in text
    assert "no engine was asked" in text


def test_images_that_are_here_need_no_disk() -> None:
    found = of(study_with(rates={"image_bytes": 2e9}), 5, lambda reference: reference.endswith(("t1", "t2")))
    assert (found.images.needed, found.images.here, found.images.pull_bytes) == (5, 2, 6e9)


def test_bundled_tasks_need_no_image(tmp_path: Path) -> None:
    pocket = Pocket(tmp_path)
    found = estimate(load_study("quickstart"), pocket.tasks(), pocket.image, None)
    assert (found.tasks, found.bases, found.forks_at_most, found.branches_at_most) == (18, 36, 72, 288)
    assert found.images.needed == 0
