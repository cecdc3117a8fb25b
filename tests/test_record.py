"""Records keep what they are given, refuse what they do not know, and digest what matters."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from harness.record import (
    Action,
    Circumstances,
    Observation,
    Raw,
    Reply,
    Step,
    Usage,
    canonical,
    clean_text,
    digest,
    seed_for,
)

RAW = TypeAdapter(Raw)


def step(output: bytes = b"", command: str = "true", seconds: float = 0.0) -> Step:
    observation = Observation(output=output, exit_code=0, size=len(output), sha256="-")
    return Step(
        index=1,
        agent="a",
        probability=1.0,
        seed=1,
        reply=Reply(text="", actions=(Action(command=command),), finish_reason="stop", usage=Usage(), model="m"),
        observations=(observation,),
        state_digest="d",
        circumstances=Circumstances(started_at="2026-01-01T00:00:00+00:00", model_seconds=seconds),
    )


@given(st.binary() | st.text().map(str.encode) | st.binary().map(b"base64:".__add__))
def test_bytes_survive_json(value: bytes) -> None:
    assert RAW.validate_json(RAW.dump_json(value)) == value


@given(st.binary(max_size=50))
def test_a_step_survives_json(output: bytes) -> None:
    assert Step.model_validate_json(step(output).model_dump_json()) == step(output)


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Action.model_validate({"command": "ls", "tol": "bash"})


def test_lone_surrogates_become_replacement_characters() -> None:
    assert clean_text("a\ud800b\U0001f600") == "a\ufffdb\U0001f600"


@given(st.floats(min_value=0, max_value=1e6))
def test_digest_ignores_circumstances_and_nothing_else(seconds: float) -> None:
    assert digest([step(seconds=seconds)]) == digest([step()])
    assert digest([step(b"x")]) != digest([step()])
    assert digest([step(command="false")]) != digest([step()])
    assert digest([step(), step()]) != digest([step()])


def test_canonical_drops_spent_seconds_and_keeps_a_tasks_own_seconds() -> None:
    spent = {"calls": 1, "seconds": 2.0, "format_errors_in_a_row": 0}
    assert canonical({"spent": spent, "seconds": 3}) == {
        "spent": {"calls": 1, "format_errors_in_a_row": 0},
        "seconds": 3,
    }


@given(st.lists(st.text() | st.integers(), min_size=1, max_size=4))
def test_seeds_are_exact_in_every_json_reader(path: list[str | int]) -> None:
    assert seed_for(*path) == seed_for(*path)
    assert 0 <= seed_for(*path) < 2**53
    assert json.loads(json.dumps(float(seed_for(*path)))) == seed_for(*path)


def test_seed_paths_do_not_collide_by_concatenation() -> None:
    assert len({seed_for("a", "b"), seed_for("ab"), seed_for("a", "b", ""), seed_for("a", 1), seed_for("a", "1")}) == 5
