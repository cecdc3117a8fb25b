"""Times of logs: seconds or milliseconds, with a zone or without."""

import json
from pathlib import Path

import pytest

from harness.importers.clocks import read_moment, seconds_between


@pytest.mark.parametrize(
    ("value", "utc", "naive"),
    [
        ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00+00:00", False),
        ("2026-01-01T00:10:00Z", "2026-01-01T00:10:00+00:00", False),
        ("2026-01-01T00:00:00", "2026-01-01T00:00:00+00:00", True),
        (1767225900, "2026-01-01T00:05:00+00:00", False),
        (1767226200000, "2026-01-01T00:10:00+00:00", False),
        (1767225900.25, "2026-01-01T00:05:00.250000+00:00", False),
    ],
)
def test_a_time_is_read_as_utc_and_flagged_where_its_zone_is_a_guess(value: object, utc: str, naive: bool) -> None:
    moment = read_moment(value)
    assert moment is not None
    assert (moment.utc.isoformat(), moment.naive) == (utc, naive)


@pytest.mark.parametrize("value", [None, True, "", "yesterday", float("nan"), float("inf"), 1e300, [], {}])
def test_what_is_no_time_is_none(value: object) -> None:
    assert read_moment(value) is None


def test_case_062(shared_data: Path) -> None:
    lines = (shared_data.parent / "bugs/cases/062-clock-zones/records.jsonl").read_text().splitlines()
    found = {}
    for entry in map(json.loads, lines):
        found[entry["instance_id"]] = seconds_between(read_moment(entry["started"]), read_moment(entry["ended"]))
    assert found == {"a": (600.0, True), "b": (300.0, False), "c": (599.876544, False), "d": (None, False)}
