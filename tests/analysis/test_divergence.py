"""Edit distance and divergence are algebra: laws on random lists, the known faults on the stored cases."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.divergence import (
    KINDS,
    Divergence,
    action_agreement,
    context_validity,
    edit_count,
    edit_distance,
    first_divergence,
    kind_of,
    truncated_bounds,
)

laws = settings(deadline=None)  # no law depends on how busy the machine is
ROOT = Path(__file__).parents[2]
CASES = ROOT.parent / "shared/bugs/cases/058-empty-lists/pairs.json"

# Few commands, so that random lists share some; "" and one letter, where back ends have special cases.
COMMANDS = st.lists(st.sampled_from(["ls", "l", "s", "", "cat x", "é"]), max_size=8)
STOPS = st.sampled_from(["submitted", "call_limit"])


def reference_distance(a, b):
    """Textbook Levenshtein, to be compared with the library."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


@laws
@given(COMMANDS, COMMANDS)
def test_edit_count_is_textbook_levenshtein_and_symmetric(a, b):
    assert edit_count(a, b) == reference_distance(a, b) == edit_count(b, a)


@laws
@given(COMMANDS, COMMANDS, COMMANDS)
def test_edit_count_is_a_metric(a, b, c):
    assert (edit_count(a, b) == 0) == (a == b)
    assert edit_count(a, c) <= edit_count(a, b) + edit_count(b, c)


@laws
@given(COMMANDS, COMMANDS)
def test_edit_distance_is_bounded_and_length_alone_forces_its_floor(a, b):
    longest = max(len(a), len(b), 1)
    assert abs(len(a) - len(b)) / longest <= edit_distance(a, b) <= 1
    assert edit_distance(a, b) == edit_count(a, b) / longest


@laws
@given(COMMANDS, COMMANDS, st.integers(1, 10), STOPS, STOPS)
def test_distance_to_a_horizon(a, b, h, stop_a, stop_b):
    d = edit_distance(a, b, horizon=h, base_stop=stop_a, branch_stop=stop_b)
    padded = [x[:h] + [("END", stop)] * (h - len(x)) for x, stop in ((a, stop_a), (b, stop_b))]
    assert d == reference_distance(*padded) / h
    assert 0 <= d <= 1
    assert d == edit_distance(b, a, horizon=h, base_stop=stop_b, branch_stop=stop_a)


def test_an_end_is_not_a_command_and_ends_differ_by_stop():
    assert edit_distance([], [], horizon=2, base_stop="submitted", branch_stop="submitted") == 0
    assert edit_distance([], [], horizon=2, base_stop="submitted", branch_stop="call_limit") == 1
    assert edit_distance(["submitted"], [], horizon=1, branch_stop="submitted") == 1
    assert edit_distance(["a", "b", "x"], ["a", "b", "y"], horizon=2) == 0


@pytest.mark.parametrize("h", [0, -1])
def test_a_horizon_below_one_is_refused(h):
    with pytest.raises(ValueError, match="at least 1"):
        edit_distance(["a"], ["a"], horizon=h)


def test_a_list_that_ended_before_the_horizon_must_say_how():
    with pytest.raises(ValueError, match="branch_stop is needed"):
        edit_distance(["a", "b"], ["a"], horizon=2, base_stop="submitted")


@laws
@given(COMMANDS, COMMANDS)
def test_kinds_partition_and_at_is_where_the_lists_part(a, b):
    got = first_divergence(a, b)
    assert (got.n_base, got.n_branch) == (len(a), len(b))
    assert got.kind == kind_of(got.at, got.n_base, got.n_branch)
    meaning = {
        "identical": a == b,
        "extended": b[: len(a)] == a and len(b) > len(a),
        "cut_short": a[: len(b)] == b and len(a) > len(b),
    }
    meaning["diverged"] = not any(meaning.values())
    assert [kind for kind in KINDS if meaning[kind]] == [got.kind]
    if got.at is not None:
        assert a[: got.at] == b[: got.at]
        assert a[got.at : got.at + 1] != b[got.at : got.at + 1]


@laws
@given(st.none() | st.integers(-1, 5), st.integers(-1, 4), st.integers(-1, 4))
def test_kind_of_accepts_exactly_what_two_lists_can_give(at, n_base, n_branch):
    shorter = min(n_base, n_branch)
    possible = n_base >= 0 and n_branch >= 0
    if at is None:
        possible = possible and n_base == n_branch
    else:
        possible = possible and (0 <= at < shorter or (at == shorter and n_base != n_branch))
    if not possible:
        with pytest.raises(ValueError, match="no two lists"):
            kind_of(at, n_base, n_branch)
        return
    base = ["same"] * n_base
    branch = ["same"] * n_branch
    if at is not None and at < shorter:
        branch[at] = "other"
    assert first_divergence(base, branch) == Divergence(at, kind_of(at, n_base, n_branch), n_base, n_branch)


@laws
@given(COMMANDS, COMMANDS)
def test_validities_are_shares_and_context_is_one_decision_ahead(a, b):
    got = first_divergence(a, b)
    agreement, context = action_agreement(got), context_validity(got)
    if not a and b:
        assert agreement is None and context is None
        return
    assert 0 <= agreement <= context <= 1
    if got.at is None:
        assert agreement == context == 1
    else:
        assert agreement == got.at / len(a)
        assert context == min(1, (got.at + 1) / len(a))


@laws
@given(COMMANDS, COMMANDS)
def test_truncated_bounds_hold_for_the_lists_themselves(a, b):
    got = first_divergence(a, b)
    bounds = truncated_bounds(edit_count(a, b), got)
    shorter = min(len(a), len(b))
    assert bounds.low <= edit_distance(a[:shorter], b[:shorter]) <= bounds.high


def cases():
    return json.loads(CASES.read_text()) if CASES.exists() else []


@pytest.mark.skipif(not CASES.exists(), reason=f"no {CASES}")
def test_the_stored_empty_list_cases():
    assert len(cases()) >= 7
    for case in cases():
        if case["a"] is None or case["b"] is None:
            for function in (first_divergence, edit_distance, edit_count):
                with pytest.raises(TypeError, match="got NoneType"):
                    function(case["a"], case["b"])
        else:
            assert edit_distance(case["a"], case["b"]) == case["normalised"]
            assert first_divergence(case["a"], case["b"]).at == case["first_divergence"]


BACK_END_CHECK = """
import json, sys
from rapidfuzz.distance import Levenshtein
from analysis.divergence import edit_distance
pairs = json.load(sys.stdin)
print(Levenshtein.distance.__module__)
print(json.dumps([edit_distance(a, b) for a, b in pairs]))
"""


def test_both_library_back_ends_agree():
    words = ["ls", "l", "a", "", "é", "x" * 70]
    pairs = [[case["a"], case["b"]] for case in cases() if case["b"] is not None]
    pairs += [[words[i:j], words[k:][::-1]] for i in range(6) for j in range(6) for k in range(6)]
    pairs += [[words * 20, words[1:] * 20]]  # more than 64 items: another code path
    answers = {}
    for back_end in ("cpp", "python"):
        environment = os.environ | {"RAPIDFUZZ_IMPLEMENTATION": back_end, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            [sys.executable, "-c", BACK_END_CHECK],
            input=json.dumps(pairs),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        module, numbers = ran.stdout.splitlines()
        answers[module] = json.loads(numbers)
    assert len(answers) == 2, f"one back end answered for both: {list(answers)}"
    first, second = answers.values()
    assert first == second == [reference_distance(a, b) / max(len(a), len(b), 1) for a, b in pairs]


@pytest.mark.parametrize("wrong", ["ls", b"ls", None, {"ls": 1}, [{"command": "ls"}], ["ls", 3], [["l", "s"]], {"ls"}])
@pytest.mark.parametrize("function", [first_divergence, edit_count, edit_distance])
def test_anything_but_a_list_of_commands_is_refused(function, wrong):
    for pair in ((wrong, ["ls"]), (["ls"], wrong)):
        with pytest.raises(TypeError):
            function(*pair)


def test_importing_does_not_import_the_library():
    code = "import sys, analysis.divergence; print('rapidfuzz' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "False"
