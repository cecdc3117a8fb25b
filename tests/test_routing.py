"""A routing policy is a pure function of step and seed, and says its probability."""

from hypothesis import given
from hypothesis import strategies as st

from harness.record import Arm
from harness.routing import Always, RandomMix, SwitchAt, SwitchFor, policy_for

STEPS = st.integers(min_value=1, max_value=100)


@given(STEPS, STEPS)
def test_switch_at(step: int, at: int) -> None:
    assert SwitchAt("a", "b", at).choose(step, seed=0).agent == ("b" if step >= at else "a")


@given(STEPS, STEPS, STEPS)
def test_switch_for_is_two_switches(step: int, at: int, count: int) -> None:
    there, back = SwitchAt("a", "b", at), SwitchAt("b", "a", at + count)
    expected = back.choose(step, seed=0).agent if step >= at + count else there.choose(step, seed=0).agent
    assert SwitchFor("a", "b", at, count).choose(step, seed=0).agent == expected


@given(STEPS, st.integers(), st.floats(min_value=0, max_value=1))
def test_random_mix_repeats_and_states_its_probability(step: int, seed: int, share: float) -> None:
    choice = RandomMix("a", "b", share).choose(step, seed=seed)
    assert choice == RandomMix("a", "b", share).choose(step, seed=seed)
    assert choice.probability == (share if choice.agent == "b" else 1 - share)


def test_random_mix_draws_with_its_share() -> None:
    drawn = [RandomMix("a", "b", 0.3).choose(step, seed=7).agent for step in range(1, 4001)]
    assert abs(drawn.count("b") / 4000 - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5


def test_an_arm_is_a_policy() -> None:
    assert policy_for(Arm(name="swap", agent="b")) == Always("b")
