"""Fork rules choose the steps they say, and a branch starts with what its prefix spent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import ForksSection, LimitsSection
from harness.fork import RULES, fork_points, start_of
from harness.record import Spent
from tests.made import FORMAT_ERROR, make_base

LIMITS = LimitsSection(calls=30)
COMMANDS = st.lists(st.sampled_from(["ls", "cat a", FORMAT_ERROR]), min_size=1, max_size=30)


def steps_of(commands: list[str], rule: str, *at: float) -> list[int]:
    points = fork_points(make_base(commands), ForksSection(rule=rule, at=at), LIMITS)  # type: ignore[arg-type]
    return [point.step for point in points]


@given(COMMANDS, st.floats(min_value=0.01, max_value=0.99))
def test_the_papers_rule_counts_parsed_turns_and_rounds_half_to_even(commands: list[str], fraction: float) -> None:
    parsed = [number for number, command in enumerate(commands, 1) if command != FORMAT_ERROR]
    expected = [parsed[max(1, round(fraction * len(parsed))) - 1]] if parsed else []
    assert steps_of(commands, "paper_fraction", fraction) == expected


def test_format_errors_move_the_papers_points_and_not_the_step_fractions() -> None:
    commands = [FORMAT_ERROR, FORMAT_ERROR, "a", "b", "c", "d"]
    assert steps_of(commands, "paper_fraction", 0.5) == [4]
    assert steps_of(commands, "fraction", 0.5) == [3]


@given(COMMANDS, st.floats(min_value=0.01, max_value=0.99))
def test_call_fraction_does_not_look_at_the_base_beyond_reaching_the_step(commands: list[str], fraction: float) -> None:
    step = max(1, round(fraction * 30))
    assert steps_of(commands, "call_fraction", fraction) == ([step] if step <= len(commands) else [])


def test_absolute_and_every() -> None:
    assert steps_of(["a"] * 7, "absolute", 2, 7, 8) == [2, 7]
    assert steps_of(["a"] * 7, "every", 3) == [3, 6]


def test_rules_say_whether_they_anticipate() -> None:
    assert {name for name, rule in RULES.items() if not rule.anticipating} == {"absolute", "call_fraction", "every"}


def test_points_that_coincide_become_one_that_bears_both_names() -> None:
    (point,) = fork_points(make_base(["a", "b"]), ForksSection(rule="fraction", at=(0.3, 0.5)), LIMITS)
    assert (point.step, point.depth) == (1, "30%+50%")


def test_a_base_without_a_parsed_reply_has_no_fork() -> None:
    assert steps_of([FORMAT_ERROR] * 3, "paper_fraction", 0.3) == []


@given(COMMANDS, st.data())
def test_the_budget_is_carried_whole(commands: list[str], data: st.DataObject) -> None:
    step = data.draw(st.integers(min_value=1, max_value=len(commands)))
    base = make_base(commands)
    (point,) = fork_points(base, ForksSection(rule="absolute", at=(step,)), LIMITS)
    start = start_of(point, base, "carry")
    in_a_row = 0
    for command in commands[: step - 1]:
        in_a_row = in_a_row + 1 if command == FORMAT_ERROR else 0
    assert start.history == base.steps[: step - 1]
    assert (start.spent.calls, start.spent.output_tokens) == (step - 1, 2 * (step - 1))
    assert start.spent.seconds == pytest.approx(0.75 * (step - 1))
    assert start.spent.format_errors_in_a_row == in_a_row
    assert point.calls_left == 30 - (step - 1)


def test_refund_gives_format_error_calls_back() -> None:
    base = make_base(["a", FORMAT_ERROR, FORMAT_ERROR, "b"])
    (point,) = fork_points(base, ForksSection(rule="absolute", at=(4,)), LIMITS)
    assert start_of(point, base, "refund").spent == Spent(calls=1)


def test_the_prefix_digest_binds_a_fork_to_its_prefix_alone() -> None:
    def digest(*commands: str) -> str:
        return fork_points(make_base(commands), ForksSection(rule="absolute", at=(3,)), LIMITS)[0].prefix_digest

    assert digest("a", "b", "c") == digest("a", "b", "x", "y")
    assert digest("a", "b", "c") != digest("a", "x", "c")
