"""W, D2, eta, tau, gains, losses and flips against hand-worked and brute-force values."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.effects import behaviour_effect, outcome_effect, whole_suffix, within
from analysis.flips import count_flips
from analysis.load import BranchRow, ForkKey
from harness.record import Stop
from tests.made import make_base, make_branch

Forks = dict[ForkKey, list[BranchRow]]


def fork(task: str, swaps: list[list[str]], controls: list[list[str]], **more: object) -> Forks:
    """One fork at step 2 with the given suffixes."""
    base = make_base(["a", "b"], task=task)
    rows = [
        BranchRow(base, make_branch(base, 2, arm, number, suffix, **more))  # type: ignore[arg-type]
        for arm, suffixes in (("swap", swaps), ("control", controls))
        for number, suffix in enumerate(suffixes, 1)
    ]
    return {ForkKey(task, "up", 2): rows}


def outcomes(task: str, swaps: list[bool | None], controls: list[bool | None], base: bool = False) -> Forks:
    made = make_base(["a", "b"], resolved=base, task=task)
    rows = [
        BranchRow(made, make_branch(made, 2, arm, number, ["x"], resolved=value))  # type: ignore[arg-type]
        for arm, values in (("swap", swaps), ("control", controls))
        for number, value in enumerate(values, 1)
    ]
    return {ForkKey(task, "up", 2): rows}


def test_w_is_between_minus_within() -> None:
    effect = behaviour_effect(fork("t", [["x"], ["y"]], [["a"], ["a"]]), whole_suffix)
    assert (effect.w.value, effect.floor.value, effect.d2.value, effect.eta) == (1.0, 0.0, 1.0, 1.0)
    assert (effect.w.instances, effect.w.forks, effect.w.branches) == (1, 1, 4)


def test_distances_are_averaged_over_pairs_and_w_may_be_negative() -> None:
    effect = behaviour_effect(fork("t", [["a"], ["b"]], [["a"], ["b"]]), whole_suffix)
    assert effect.floor.value == 1.0
    assert effect.w.value == -0.5
    assert effect.d2.value == -1.0
    assert effect.eta is None  # the floor leaves nothing to be above


def test_instances_weigh_equally_whatever_their_number_of_forks() -> None:
    one = fork("t", [["x"]] * 2, [["a"]] * 2)
    base = make_base(["a", "b", "c"], task="u")
    many = {
        ForkKey("u", "up", step): [
            BranchRow(base, make_branch(base, step, arm, number, ["a"]))  # type: ignore[arg-type]
            for arm in ("swap", "control")
            for number in (1, 2)
        ]
        for step in (1, 2, 3)
    }
    effect = behaviour_effect({**one, **many}, whole_suffix)
    assert effect.w.value == 0.5
    assert (effect.w.instances, effect.w.forks) == (2, 4)


def test_one_control_identifies_no_floor_and_no_w() -> None:
    effect = behaviour_effect(fork("t", [["x"]], [["a"]]), whole_suffix)
    assert effect.w.value is None
    assert effect.dropped == 1


def test_a_horizon_needs_that_many_calls_left() -> None:
    short = fork("t", [["x"]] * 2, [["a"]] * 2, calls_left=4)
    assert behaviour_effect(short, within(5)).w.value is None
    assert behaviour_effect(short, within(4)).w.value is not None


def test_a_run_that_ended_is_padded_with_its_stop() -> None:
    same = fork("t", [["a"]] * 2, [["a"]] * 2)
    assert behaviour_effect(same, within(5)).w.value == 0.0
    base = make_base(["a", "b"])
    stops = {"swap": Stop.FORMAT_ERRORS, "control": Stop.SUBMITTED}
    rows = [
        BranchRow(base, make_branch(base, 2, arm, number, ["a"], stop=stops[arm]))  # type: ignore[arg-type]
        for arm in stops
        for number in (1, 2)
    ]
    assert behaviour_effect({ForkKey("t", "up", 2): rows}, within(5)).w.value == pytest.approx(0.8)


def test_tau_gains_losses_by_hand() -> None:
    effect = outcome_effect(outcomes("t", [True, False], [False, False]) | outcomes("u", [False, False], [True, True]))
    assert effect.tau.value == pytest.approx((0.5 - 1) / 2)
    assert effect.gains.value == pytest.approx(0.25)
    assert effect.losses.value == pytest.approx(0.5)
    assert (effect.swap_resolved, effect.control_resolved) == ((1, 4), (2, 4))


OUTCOMES = st.lists(st.booleans(), min_size=1, max_size=4)


@given(OUTCOMES, OUTCOMES)
def test_gains_and_losses_are_pair_means_and_differ_by_tau(swaps: list[bool], controls: list[bool]) -> None:
    effect = outcome_effect(outcomes("t", list(swaps), list(controls)))
    pairs = list(product(swaps, controls))
    assert effect.gains.value == pytest.approx(sum(s and not c for s, c in pairs) / len(pairs))
    assert effect.losses.value == pytest.approx(sum(c and not s for s, c in pairs) / len(pairs))
    assert effect.tau.value == pytest.approx(effect.gains.value - effect.losses.value)  # type: ignore[operator]


def test_an_unscored_branch_is_left_out_and_never_a_zero() -> None:
    effect = outcome_effect(outcomes("t", [True, None], [False]))
    assert effect.tau.value == 1.0
    assert effect.swap_resolved == (1, 1)
    assert outcome_effect(outcomes("t", [None], [False])).tau.value is None


SUFFIX = st.lists(st.sampled_from("abc"), max_size=4)


@given(st.lists(SUFFIX, min_size=2, max_size=2), st.lists(SUFFIX, min_size=2, max_size=2))
def test_the_decomposition_of_w_holds(swaps: list[list[str]], controls: list[list[str]]) -> None:
    forks = fork("t", swaps, controls)
    there = behaviour_effect(forks, whole_suffix)
    back = behaviour_effect(fork("t", controls, swaps), whole_suffix)
    # W = (D2 + d_ss - d_cc) / 2, and D2 does not care which arm is which (M4).
    assert there.d2.value == pytest.approx(back.d2.value)
    assert there.w.value == pytest.approx((there.d2.value + back.floor.value - there.floor.value) / 2)  # type: ignore[operator]


def test_flips_are_against_the_base_and_signed() -> None:
    (up,) = outcomes("t", [True, False], [None], base=False).values()
    (down,) = outcomes("t", [True, False], [True], base=True).values()
    assert (count_flips(up).graded, count_flips(up).gained, count_flips(up).lost) == (2, 1, 0)
    assert (count_flips(down).graded, count_flips(down).gained, count_flips(down).lost) == (3, 0, 1)
