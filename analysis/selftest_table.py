"""The determinism self-test of a served model as a table: which condition makes a reply differ, where, how often."""

from collections.abc import Mapping
from typing import Any

from analysis.table import Cell, Column, Table, absent, count, label, number, rate

_COLUMNS = (
    Column("condition", "condition", is_label=True),
    Column("changes", "against the reference", is_label=True),
    Column("differing", "differing"),
    Column("first", "first at"),
    Column("counts", "counts"),
    Column("seconds", "seconds"),
)
_NONE_DIFFERS = "no reply differs"
_CHANGES = {
    "again": "asked alone once more",
    "order": "alone, reverse order",
    "warm": "right after itself",
    "batch": "all in flight together",
    "twins": "twice at once",
    "seed": "another seed",
    "unseeded": "no seed sent",
    "handover": "call 2 cold, not continued",
    "restart": "after a restart",
}


def selftest_table(facts: Mapping[str, Any], place: int = 1) -> Table:
    """`facts` as the manifest holds them; `place` tells several in one report apart."""
    verdict = "repeats itself" if facts["deterministic"] else "does not repeat itself"
    title = (
        f"determinism self-test · {facts['model']} · {verdict} · {facts['prompts']} prompts, replies of at most "
        f"{facts['max_tokens']} tokens, temperature {facts['temperature']:g} · compared by {facts['unit']}s"
    )
    rows = tuple(_row(found, facts["unit"]) for found in facts["conditions"])
    return Table(f"selftest{place}", title, _COLUMNS, rows, tuple(_notes(facts)))


def _row(found: Mapping[str, Any], unit: str) -> tuple[Cell, ...]:
    name, why_not = found["name"], found["why_not"]
    first = absent(why_not or _NONE_DIFFERS) if found["first"] is None else count(found["first"])
    differing = rate(found["differing"], found["n"], 0, why=why_not)
    counts = label("yes" if found["counts"] else "no")
    return label(name), label(_CHANGES[name]), differing, first, counts, _seconds(found)


def _seconds(found: Mapping[str, Any]) -> Cell:
    return number(found["seconds"], 1) if found["n"] else absent(found["why_not"])


def _notes(facts: Mapping[str, Any]) -> list[str]:
    notes = [
        f"The reference is each prompt asked alone, {_coldness(facts)}, with a seed of its own.",
        "0 of n differing means a rate below 1 - .05^(1/n) (95%), about 3/n: here "
        f"{facts['bound_if_none_differs']:.2g}, for prompts and reply lengths as these.",
        "Seeds are sent in every condition but `unseeded`. At temperature 0 a study relies on every condition that"
        " counts; above 0 another seed has to make a difference and does not count.",
    ]
    if facts["untried"]:
        notes.append(f"Not tried though it counts, hence not vouched for: {', '.join(facts['untried'])}.")
    return notes


def _coldness(facts: Mapping[str, Any]) -> str:
    how = {
        "reset": "after the prefix cache was emptied",
        "salt": "with a cache salt that no request has had",
        None: "in whatever state the prefix cache was",
    }[facts["cold_by"]]
    told = facts["cached_cold"]
    return (
        how if told is None else f"{how} ({told} prompt tokens came from the cache; {facts['cached_warm']} when warm)"
    )
