"""Grading again: who is chosen with what probability, what the weights make of it, and that nothing else changes."""

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.flakes import GradedCell, flake_table, graded_cells, weighted_share
from harness.errors import UsageError
from harness.gradings import Design, discordant, plan_gradings
from harness.journal import Records
from harness.record import Branch, Outcome, Provenance, Reason, Regrade, Task, Trajectory
from tests.bug_cases.parts import Run, make_run
from tests.made import make_base, make_branch

TASKS = [Task(instance_id=f"t{number}", repo="r", base_commit="0" * 40, problem_statement="x") for number in range(200)]


def outcome(resolved: bool) -> Outcome:
    reason = Reason.RESOLVED if resolved else Reason.TESTS_FAILED
    return Outcome(status="resolved" if resolved else "unresolved", reason=reason)


def graded(record: Trajectory | Branch, resolved: bool, reason: Reason | None = None) -> Trajectory | Branch:
    made = outcome(resolved)
    made = made if reason is None else made.model_copy(update={"reason": reason})
    ending = record.ending.model_copy(update={"outcome": made, "patch": b"p"})
    return record.model_copy(update={"ending": ending})


def records_of(forks: Sequence[tuple[bool, bool, bool]]) -> Records:
    """A base, a control and a swap for each (resolved, resolved, resolved)."""
    found = Records()
    for number, (base, control, swap) in enumerate(forks):
        made = make_base(["a", "b"], task=f"t{number}")
        found.bases[made.id] = graded(made, base)  # type: ignore[assignment]
        for arm, resolved in (("control", control), ("swap", swap)):
            branch = make_branch(made, 2, arm, 1, ["b"])  # type: ignore[arg-type]
            found.branches[branch.id] = graded(branch, resolved)  # type: ignore[assignment]
    return found


def add_regrades(records: Records, planned: Sequence[object], outcomes: Iterator[bool]) -> None:
    for cell in planned:
        made = Regrade(
            id=cell.id,  # type: ignore[attr-defined]
            cell_id=cell.record.id,  # type: ignore[attr-defined]
            number=cell.number,  # type: ignore[attr-defined]
            outcome=outcome(next(outcomes)),
            inclusion=cell.inclusion,  # type: ignore[attr-defined]
            sample=cell.design.sample,  # type: ignore[attr-defined]
            sample_seed=cell.design.seed,  # type: ignore[attr-defined]
            provenance=Provenance(),
        )
        records.regrades[made.id] = made


AGREE, SWAP_DIFFERS, BASE_DIFFERS = (True, True, True), (False, False, True), (True, False, False)
FORKS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=8)


# --- the plan


def test_every_record_of_a_fork_whose_outcomes_differ_is_discordant() -> None:
    records = records_of([AGREE, SWAP_DIFFERS, BASE_DIFFERS])
    found = discordant(records)
    assert found == {name for name in [*records.bases, *records.branches] if not name.startswith("t0")}


@settings(derandomize=True, deadline=None)
@given(FORKS, st.integers(0, 99), st.integers(1, 3))
def test_without_a_sample_every_tested_cell_is_graded_as_often_as_asked(
    forks: list[tuple[bool, bool, bool]], seed: int, times: int
) -> None:
    records = records_of(forks)
    planned = plan_gradings(records, TASKS, Design(1.0, seed), times)
    assert len(planned) == len({cell.id for cell in planned}) == 3 * len(forks) * times
    assert {cell.inclusion for cell in planned} == {1.0}


@settings(derandomize=True, deadline=None)
@given(FORKS, st.integers(0, 99), st.floats(0.05, 0.6), st.floats(0.6, 0.95))
def test_a_larger_sample_holds_a_smaller_one_and_both_hold_all_discordant_cells(
    forks: list[tuple[bool, bool, bool]], seed: int, small: float, large: float
) -> None:
    records = records_of(forks)
    few, many = (
        {cell.record.id: cell.inclusion for cell in plan_gradings(records, TASKS, Design(share, seed), 1)}
        for share in (small, large)
    )
    assert set(few) <= set(many)
    certain = discordant(records)
    assert certain <= set(few)
    assert all(inclusion == (1.0 if cell in certain else small) for cell, inclusion in few.items())


def test_cells_whose_tests_were_never_run_are_not_graded_again() -> None:
    records = records_of([AGREE])
    for reason in (Reason.EMPTY_PATCH, Reason.NO_SUBMISSION, Reason.PATCH_DOES_NOT_APPLY):
        name = "t0:up@2:swap#1"
        records.branches[name] = graded(records.branches[name], False, reason)  # type: ignore[assignment]
        assert {cell.record.id for cell in plan_gradings(records, TASKS, Design(), 1)} == {"t0:a", "t0:up@2:control#1"}


def test_what_is_graded_again_is_what_was_graded() -> None:
    records = records_of([AGREE])
    base = records.bases["t0:a"]
    ending = base.ending.model_copy(update={"graded": "submission", "submission": "s", "patch": b"p"})
    records.bases["t0:a"] = base.model_copy(update={"ending": ending})
    patches = {cell.record.id: cell.patch for cell in plan_gradings(records, TASKS, Design(), 1)}
    assert patches == {"t0:a": b"s", "t0:up@2:control#1": b"p", "t0:up@2:swap#1": b"p"}


def test_one_run_has_one_design() -> None:
    records = records_of([AGREE, SWAP_DIFFERS])
    planned = plan_gradings(records, TASKS, Design(0.9, 1), 1)
    add_regrades(records, planned, iter([True] * 9))
    assert len(plan_gradings(records, TASKS, Design(0.9, 1), 3)) == 3 * len(planned)
    for other in (Design(0.8, 1), Design(0.9, 2), Design()):
        with pytest.raises(UsageError, match=r"graded again with --sample 0\.9 --seed 1"):
            plan_gradings(records, TASKS, other, 1)


def test_records_that_change_a_cells_probability_are_refused() -> None:
    records = records_of([AGREE] * 20)
    planned = plan_gradings(records, TASKS, Design(0.5, 1), 1)
    add_regrades(records, planned, iter([True] * 60))
    hit = next(cell.record for cell in planned if cell.record.id in records.branches)
    later = make_branch(records.bases[f"{hit.task_id}:a"], 2, "swap", 2, ["c"])
    records.branches[later.id] = graded(later, False)  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"with inclusion probability 0\.5, and records that came since"):
        plan_gradings(records, TASKS, Design(0.5, 1), 1)


# --- the rates


@settings(derandomize=True, deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=9))
def test_the_share_of_differing_pairs_is_counted_over_all_pairs(resolved: list[bool]) -> None:
    pairs = [(a, b) for place, a in enumerate(resolved) for b in resolved[:place]]
    cell = GradedCell("c", tuple(resolved), 1.0)
    assert cell.pairs_differ == pytest.approx(sum(a != b for a, b in pairs) / len(pairs))
    assert cell.differs == any(a != b for a, b in pairs)


def test_weights_mend_what_choosing_by_outcome_does_to_the_rate() -> None:
    """60 forks, steady or flaky: the weighted rate meets that of grading all, that of forks that differ does not."""
    rng = np.random.default_rng(7)
    chances = np.repeat(rng.choice([0.0, 0.2, 0.5, 1.0], size=(60, 1), p=[0.4, 0.2, 0.1, 0.3]), 3, axis=1)
    first = rng.random((60, 3)) < chances
    records = records_of([tuple(map(bool, row)) for row in first])  # type: ignore[misc]
    cells = [*(f"t{n}:a" for n in range(60)), *(f"t{n}:up@2:{arm}#1" for arm in ("control", "swap") for n in range(60))]
    chance = dict(zip(cells, [*chances[:, 0], *chances[:, 1], *chances[:, 2]], strict=True))
    own = dict(zip(cells, [*first[:, 0], *first[:, 1], *first[:, 2]], strict=True))
    # Two gradings, the first of which is fixed: the chance that they differ, over all cells.
    truth = float(np.mean([1 - chance[c] if own[c] else chance[c] for c in cells]))
    weighted, flips = [], []
    for seed in range(300):
        records.regrades.clear()
        planned = plan_gradings(records, TASKS, Design(0.3, seed), 1)
        add_regrades(records, planned, (bool(rng.random() < chance[cell.record.id]) for cell in planned))
        found = graded_cells(records)
        share = weighted_share(found, [cell.pairs_differ for cell in found])
        assert share is not None
        weighted.append(share)
        flips.append(np.mean([cell.pairs_differ for cell in found if cell.inclusion == 1]))
    error = np.std(weighted) / np.sqrt(len(weighted))
    assert abs(np.mean(weighted) - truth) < 4 * error
    assert abs(np.mean(flips) - truth) > 20 * error


def test_the_table_says_what_the_rate_rests_on() -> None:
    records = records_of([AGREE, SWAP_DIFFERS])
    planned = plan_gradings(records, TASKS, Design(), 2)
    steady = ((cell.record.ending.outcome.status == "resolved") != (cell.id == "t0:a~1") for cell in planned)
    add_regrades(records, planned, steady)
    table = flake_table(records, "r")
    shown = {row[0].text: row[1] for row in table.rows}
    assert shown["finished cells"].value == shown["graded again"].value == 6
    assert shown["gradings of them, the first included"].value == 18
    assert shown["cells whose gradings differ"].parts == {"numerator": 1, "denominator": 6}
    assert shown["flake rate: two gradings differ, weighted"].value == pytest.approx(2 / 3 / 6)
    assert table.notes == ("gradings differ: t0:a: 2 of 3 resolved",)


def test_a_sample_that_holds_no_cell_whose_fork_agrees_gives_no_rate() -> None:
    records = records_of([AGREE, SWAP_DIFFERS])
    seed = next(seed for seed in range(99) if len(plan_gradings(records, TASKS, Design(0.01, seed), 1)) == 3)
    add_regrades(records, plan_gradings(records, TASKS, Design(0.01, seed), 1), iter([True] * 3))
    shown = {row[0].text: row[1] for row in flake_table(records, "r").rows}
    rate = shown["flake rate: two gradings differ, weighted"]
    assert rate.value is None and "the sample holds none of the 3 cells" in rate.note


def test_nothing_graded_again_is_no_rate_of_zero() -> None:
    shown = {row[0].text: row[1] for row in flake_table(records_of([AGREE]), "r").rows}
    assert shown["flake rate: two gradings differ, weighted"].value is None
    assert shown["cells whose gradings differ"].value is None


# --- the command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One bundled task; each model does half of it, so that there is something to grade."""
    folder = tmp_path_factory.mktemp("run")
    commands = ["ls", "touch new.txt", "echo FORKROLL_SUBMIT"]
    made = make_run(folder, {"client": "scripted", "commands": commands}, arms=["control", "swap"])
    assert made.finish() == 0
    return made


def test_gradings_are_appended_resumed_and_leave_everything_else_as_it_was(run: Run) -> None:
    export = json.loads(run.tell("tables", "--format", "json").stdout)
    before = run.records()
    first = run.tell("grade", "--times", "1", "--format", "json")
    assert first.returncode == 0, first.stderr
    again = run.tell("grade", "--times", "2", "--format", "json")
    assert again.returncode == 0, again.stderr
    nothing = run.tell("grade", "--times", "2")
    assert nothing.returncode == 0
    after = run.records()
    ids = sorted([*before.bases, *before.branches])
    assert len(ids) == 3
    assert sorted(after.regrades) == sorted(f"{cell}~{number}" for cell in ids for number in (1, 2))
    assert (after.bases, after.branches) == (before.bases, before.branches)
    *rest, flakes = json.loads(run.tell("tables", "--format", "json").stdout)
    assert (rest, flakes["name"]) == (export, "flakes")
    assert {one.outcome.status for one in after.regrades.values()} == {"unresolved"}
    assert b"0/3 (0.0%)" in nothing.stdout
    assert run.tell("status").returncode == 0
    session = json.loads((run.run_folder / "manifest.json").read_text())["sessions"][-1]
    assert session["grading"] == {"sample": 1.0, "seed": 0, "times": 2}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sample", "0"), b"--sample is above 0"),
        (("--sample", "1.5"), b"--sample is above 0"),
        (("--times", "0"), b"--times"),
    ],
)
def test_a_design_that_cannot_be_meant_is_refused(run: Run, options: tuple[str, ...], said: bytes) -> None:
    done = run.tell("grade", *options)
    assert done.returncode == 2 and said in done.stderr
