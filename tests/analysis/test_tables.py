"""Every format prints the same cells; nothing absent prints as a number; a wrong number is marked."""

import csv
import io
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import paper
from analysis import paper_tables as tables_of_paper
from analysis import table as tables
from analysis.divergence import Bounds
from analysis.table import FORMATS, WIDTH, Cell, Column, Table, render, render_many

laws = settings(deadline=None)  # no law depends on how busy the machine is
ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("FORKROLL_DATA", ROOT.parent / "shared/data")) / "replay_gap"
needs_data = pytest.mark.skipif(not (DATA / "summary.json").exists(), reason=f"no released files in {DATA}")


@pytest.fixture(scope="module")
def release():
    return paper.load_release(DATA)


@pytest.fixture(scope="module")
def printed(release):
    return tables_of_paper.paper_tables(release, rng=np.random.default_rng(0), resamples=500)


def by_name(found, name):
    return next(table for table in found if table.name == name)


def column(table, key):
    place = [c.key for c in table.columns].index(key)
    return [row[place] for row in table.rows]


# ------------------------------------------------------------------------------------------ cells


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (tables.number(0.6741), ".674"),
        (tables.number(0.2668, signed=True), "+.267"),
        (tables.number(-0.05), "-.050"),
        (tables.number(-0.0001), ".000"),
        (tables.number(1.0), "1.000"),
        (tables.number(0.6, 1), "0.6"),
        (tables.number(None, why="x"), "-"),
        (tables.rate(11, 32, 0), "11/32 (34%)"),
        (tables.rate(3, 3), "3/3 (100%)"),
        (tables.rate(0, 0), "-"),
        (tables.interval(Bounds(0.19, 0.349)), "[.190, .349]"),
        (tables.interval(None), "-"),
        (tables.estimate(0.66, Bounds(0.58, 0.74), 2, signed=True), "+.66 [+.58, +.74]"),
        (tables.count(0), "0"),
    ],
)
def test_house_style(cell, text):
    assert cell.text == text
    assert (cell.value is None) == (text == "-")


@laws
@given(st.floats(-2, 2), st.integers(0, 4))
def test_decimals_round_trip(value, digits):
    assert float(tables.decimals(value, digits)) == pytest.approx(value, abs=0.51 * 10**-digits)
    assert not tables.decimals(value, digits).startswith(("0.",) if digits >= 2 else ("-0.0x",))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_cell_holds_nan(bad):
    with pytest.raises(ValueError, match="absent"):
        tables.number(bad)
    with pytest.raises(ValueError, match="absent"):
        tables.interval(Bounds(0.0, bad))


def test_an_absent_number_needs_a_reason():
    with pytest.raises(ValueError, match="reason"):
        Cell("-", None)


def test_rounding_twice():
    assert tables.rounded_twice(2.0454545, 1) == "2.1"
    assert tables.rounded_twice(2.044, 1) == "2.0"


# ---------------------------------------------------------------------------------------- renderers

NASTY = 'a|b & c_d 50% \x1b[31m\nx,"y" <i> \ud800 {z} \\ ~^#$'


def small():
    return Table(
        "small",
        "What it shows",
        (
            Column("who", "who", is_label=True),
            Column("share_published", "publ", "share"),
            Column("share", "rec", "share"),
        ),
        (
            (tables.label("first"), tables.number(0.5), tables.rate(1, 2)),
            (
                tables.label(NASTY),
                tables.number(0.25),
                replace(tables.rate(1, 3), differs=True, note="why it differs"),
            ),
            (tables.label("third"), tables.absent("never measured"), tables.absent("never measured")),
        ),
        ("Not shown: the rest.",),
    )


def test_text():
    lines = render(small(), "text").splitlines()
    assert lines[0] == "What it shows"
    assert "share" in lines[1]
    assert lines[3].split() == ["first", ".500", "|", "1/2", "(50.0%)"]
    assert "1/3 (33.3%) ≠[1]" in lines[4]
    assert lines[5].split() == ["third", "-", "[2]", "|", "-", "[2]"]
    assert lines[-3:] == ["Not shown: the rest.", "[1] why it differs", "[2] never measured"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_carries_reasons_and_stays_printable(form):
    out = render(small(), form)
    assert out.count("never measured") >= 1
    assert "why it differs" in out
    assert "\x1b" not in out
    out.encode("utf-8")  # no lone surrogate


def test_json_and_csv_hold_exact_values_and_counts():
    loaded = json.loads(render(small(), "json"))
    assert loaded["rows"][0]["share"] == {
        "value": 0.5,
        "text": "1/2 (50.0%)",
        "parts": {"numerator": 1, "denominator": 2},
    }
    assert loaded["rows"][1]["share"]["differs"] is True
    assert loaded["rows"][2]["share"] == {"value": None, "text": "-", "note": "never measured"}
    rows = list(csv.DictReader(io.StringIO(render(small(), "csv"))))
    assert (rows[1]["share"], rows[1]["share_numerator"]) == (str(1 / 3), "1")
    assert (rows[2]["share"], rows[2]["share_numerator"]) == ("", "")
    assert rows[2]["notes"] == "share_published: never measured; share: never measured"


def test_md_and_latex_escape():
    md = render(small(), "md").splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in md if line.startswith("|")] == [4] * 5
    tex = render(small(), "latex")
    assert r"a\textbar{}b \& c\_d 50\% " in tex
    assert tex.count(r" \\") == 4


def test_several_tables():
    two = [small(), replace(small(), name="other")]
    assert [t["name"] for t in json.loads(render_many(two, "json"))] == ["small", "other"]
    assert render_many(two, "csv").count("# ") == 2
    assert render_many(two, "text").count("What it shows") == 2


def test_a_table_without_rows_says_so():
    empty = replace(small(), rows=())
    assert "(no rows)" in render(empty, "text")
    for form in FORMATS:
        render(empty, form)


def test_misshapen_tables_are_refused():
    with pytest.raises(ValueError, match="one key"):
        Table("t", "t", (Column("a", "a"), Column("a", "b")), ())
    with pytest.raises(ValueError, match="1 cells under 2"):
        Table("t", "t", (Column("a", "a"), Column("b", "b")), ((tables.count(1),),))


words = st.text("abc ", max_size=60)
shapes = st.lists(st.tuples(st.booleans(), st.sampled_from(["", "g", "a long group heading " * 3]), words), max_size=12)


@laws
@given(shapes.filter(lambda s: sum(is_label for is_label, _, _ in s) <= 4), st.data())
def test_text_never_exceeds_the_width_and_shows_every_column(shape, data):
    columns = tuple(Column(f"k{i}", f"h{i}", g, is_label) for i, (is_label, g, _) in enumerate(shape))
    row = tuple(
        tables.label(f"v{i} {data.draw(words)}")
        if is_label
        else replace(tables.label(f"v{i} {word}"), note="n", differs=True)
        for i, (is_label, _, word) in enumerate(shape)
    )
    out = render(Table("t", "t", columns, (row,)), "text")
    assert max(map(len, out.splitlines())) <= WIDTH
    for i in range(len(shape)):
        assert re.search(rf"\bh{i}\b", out) and re.search(rf"\bv{i}\b", out)


# ------------------------------------------------------------------------------------ the paper's tables


@needs_data
@pytest.mark.parametrize("form", FORMATS)
def test_paper_tables_in_every_format(printed, form):
    out = render_many(printed, form)
    for table in printed:
        assert table.name in out or form in ("text", "md")
    if form == "text":
        assert max(map(len, out.splitlines())) <= WIDTH
        assert all(len(table.title) <= WIDTH for table in printed)
    if form == "json":
        json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in json"))


@needs_data
def test_exactly_two_published_numbers_differ_and_both_say_why(printed):
    differing = {
        (table.name, tuple(c.text for c in row[:3]), c.key): cell
        for table in printed
        for row in table.rows
        for c, cell in zip(table.columns, row, strict=True)
        if cell.differs
    }
    assert len(differing) == 2
    first = differing["table1", ("down", "swap", "early"), "first"]
    delta = differing["deltas", ("up", "late", "88"), "delta"]
    assert (first.text, delta.text) == ("2.0", "+.256")
    assert "rounding twice" in first.note
    for part in ("stale rows (G23)", "django__django-11299", "django__django-14672"):
        assert part in delta.note


@needs_data
def test_summary_counts(printed):
    total = by_name(printed, "summary").rows[-1]
    assert [cell.text for cell in total] == ["all", "161", "135", "2", "24"]


@needs_data
def test_outcomes_are_absent_with_a_reason_and_never_zero(printed):
    stitch = by_name(printed, "log_stitch")
    for key in ("agreement", "missed", "false"):
        for cell in column(stitch, key):
            assert (cell.text, cell.value) == ("-", None)
            assert "no resolved flag" in cell.note


@needs_data
def test_fidelity_says_what_is_not_derivable(printed):
    fidelity = by_name(printed, "fidelity")
    actions = dict(zip([(r[0].text, r[1].text) for r in fidelity.rows], column(fidelity, "actions"), strict=True))
    assert [k for k, cell in actions.items() if cell.value is None] == [
        ("down", "full"),
        ("down", "easy"),
        ("down", "nudge"),
        ("all", "all"),
    ]
    assert [cell.text for cell in column(fidelity, "exact")][3] == "115/116 (99.1%)"
    assert "at least 99.94%" in column(fidelity, "codes")[3].note


@needs_data
def test_a_changed_number_is_marked(release):
    worse = [replace(r, edit=1.0) if r.arm == "control" and r.rank_depth == "early" else r for r in release.branches]
    table = tables_of_paper.paper_table1(paper.Release(release.bases, tuple(worse), 0), "rank")
    marked = [row[1].text + row[2].text for row in table.rows for cell in row if cell.differs and cell.text == "1.000"]
    assert marked == ["controlearly"] * 2
    assert "1.000 ≠" in render(table, "text")


@needs_data
def test_the_released_bucket_is_offered_and_its_differences_are_marked(release):
    table = tables_of_paper.paper_table1(release, "released")
    assert [cell.text for cell in column(table, "n")][:2] == ["91", "88"]
    assert sum(bool(cell.differs) for row in table.rows for cell in row) > 4


@needs_data
def test_the_same_generator_gives_the_same_bytes(release):
    def run(seed):
        return render_many(
            tables_of_paper.paper_tables(release, rng=np.random.default_rng(seed), resamples=200), "text"
        )

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_an_empty_release_prints_dashes():
    found = tables_of_paper.paper_tables(paper.Release((), (), 0), rng=np.random.default_rng(0), resamples=10)
    for form in FORMATS:
        assert "nan" not in render_many(found, form).lower().replace("finan", "")
    assert all(cell.value is None and cell.note for cell in column(by_name(found, "table1"), "edit"))


def test_nothing_heavy_is_imported():
    heavy = ["pandas", "scipy", "rapidfuzz", "pydantic"]
    code = f"import sys, analysis.paper_tables; print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"
