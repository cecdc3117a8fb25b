"""A log with anything at all in the place of any of its values is imported or refused with a place; nothing else."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.difference import restore
from harness.exporters.mini import restored_document
from harness.importers.mini import MiniImporter
from harness.importers.protocol import Document, Importer, ImportFault
from harness.importers.sweagent import SweAgentImporter
from harness.record import Trajectory
from tests.importers.made import CONFIG
from tests.importers.test_mini import EXIT, TIMEOUT, answer, log, old, reply
from tests.importers.test_sweagent import content

CALL = {"index": 0, "id": "c0", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
RESPONSE = {
    "model": "m",
    "created": 1767225600,
    "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "x", "reasoning": "y"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
}
SAID = reply("ls", tool_calls=[CALL])
SAID["extra"] |= {"response": RESPONSE, "timestamp": 1767225601.5}
ERROR = {"role": "user", "content": "bad", "extra": {"interrupt_type": "FormatError", "response": RESPONSE}}
ITEM = {"object": "response", "output": [{"type": "function_call", "name": "bash", "arguments": "{}", "call_id": "c"}]}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "3"}
STATS = {"api_calls": 3, "instance_cost": 3.0}
NEW = log(
    SAID, answer("1", 0, timestamp=1767225602), ERROR, ITEM, RESULT, EXIT,
    info={"config": CONFIG["mini-swe-agent-1.1"], "model_stats": STATS, "exit_status": "LimitsExceeded"},
)  # fmt: skip
OLD = log(
    *old("```bash\nls\n```", "<returncode>0</returncode>\n<output>\n</output>"), *old("hm", "one please"),
    info={"config": {"agent": {"timeout_template": TIMEOUT, "cost_limit": 3.0}}, "model_stats": STATS},
    trajectory_format="mini-swe-agent-1",
)  # fmt: skip

junk = st.sampled_from([None, True, -1, 1.5, 1e400, "", "x", "2026-01-01", [], [None], ["x"], [{}], {}, {"a": None}])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in `value` with each of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in pairs for found in ((value, key), *places(inner))]


@st.composite
def damaged(draw: st.DrawFn, whole: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(places(made)))
        container[key] = copy.deepcopy(draw(junk))
        if not made:
            break
    return made


@pytest.mark.parametrize(
    ("importer", "whole"),
    [(MiniImporter(), NEW), (MiniImporter(), OLD), (SweAgentImporter(), content())],
    ids=["1.1", "1", "sweagent"],
)
def test_damage(importer: Importer, whole: dict[str, Any]) -> None:
    outcomes = set()

    @settings(derandomize=True, deadline=None, max_examples=200)
    @given(damaged(whole))
    def one(made: dict[str, Any]) -> None:
        try:
            base = importer.read(Document("x", made, "", task_id="i"), "m").base
        except ImportFault as fault:
            outcomes.add("refused")
            assert fault.problem
            return
        outcomes.add("imported")
        again = Trajectory.model_validate_json(base.model_dump_json())
        assert again.source is not None
        if importer.kind == "mini":
            assert repr(restored_document(again, again.source)) == repr(made)

    one()
    assert outcomes == {"refused", "imported"}


def test_a_difference_of_no_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a difference"):
        restore(1, "x")
