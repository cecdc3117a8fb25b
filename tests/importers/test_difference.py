"""Whatever two JSON values are, the difference of one to the other brings it back, keys in their order."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.difference import SAME, difference, restore

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)


@settings(derandomize=True, deadline=None)
@given(values, values)
def test_the_difference_brings_the_wanted_value_back_to_the_byte(wanted: object, have: object) -> None:
    changes = json.loads(json.dumps(difference(wanted, have)))
    assert json.dumps(restore(have, changes)) == json.dumps(wanted)


@settings(derandomize=True, deadline=None)
@given(values)
def test_what_is_the_same_costs_nothing(value: object) -> None:
    assert difference(value, json.loads(json.dumps(value))) == SAME


def test_types_and_the_order_of_keys_count() -> None:
    assert difference(True, 1) == [True]
    assert difference(1.0, 1) == [1.0]
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) != SAME
    assert difference({"a": [1, 2]}, {"a": [1], "b": 0}) == {"d": [["a", {"l": [SAME, [2]]}]]}
