"""The tables of a run: values by hand, what is not identified is a dash with its reason, stale branches are named."""

from pathlib import Path

import pytest

from analysis.fork_tables import all_tables, fork_tables
from analysis.load import Run, load_run
from analysis.table import WIDTH, Cell, Table, render_many
from harness.journal import Journal, RunFolder
from harness.manifest import new_manifest
from harness.prompting import OwnScaffold
from harness.record import Branch, Trajectory
from tests.made import make_base, make_branch
from tests.test_sweep import make_study


def written(folder: Path, *records: Trajectory | Branch) -> Run:
    study = make_study()
    with Journal(RunFolder(folder)) as journal:
        journal.start_session("name: s\n", new_manifest(study, OwnScaffold(study.dialect), []))
        for record in records:
            journal.append(record)
    return load_run(folder)


BASE = make_base(["ls", "a", "b", "c"], resolved=True)


def branches(replicates: int = 2) -> list[Branch]:
    made = []
    for number in range(1, replicates + 1):
        made.append(make_branch(BASE, 2, "control", number, ["a", "b", "c"], resolved=True))
        made.append(make_branch(BASE, 2, "swap", number, ["x"], resolved=number == 1))
    return made


def cell(table: Table, key: str, **where: str) -> Cell:
    place = {column.key: number for number, column in enumerate(table.columns)}
    (row,) = [row for row in table.rows if all(row[place[name]].text == text for name, text in where.items())]
    return row[place[key]]


def by_name(run: Run) -> dict[str, Table]:
    return {table.name: table for table in all_tables(run)}


def test_values_by_hand(tmp_path: Path) -> None:
    made = by_name(written(tmp_path, BASE, *branches()))
    fork, behaviour, outcome = made["fork"], made["behaviour"], made["outcome"]
    assert cell(fork, "kinds", arm="control").text == "2/0/0/0"
    assert cell(fork, "edit", arm="control").value == 0.0
    assert cell(fork, "first", arm="control").value is None
    assert cell(fork, "edit", arm="swap").value == 1.0
    assert cell(fork, "validity", arm="swap").value == pytest.approx(1 / 3)
    assert cell(fork, "flips", arm="swap").text == "1/2 +0"
    assert cell(fork, "fidelity", arm="swap").text == "2/2"
    assert cell(behaviour, "w", depth="all").value == 1.0
    assert cell(behaviour, "n_w", depth="all").text == "1/1/4"
    assert cell(outcome, "tau", depth="all").value == -0.5
    assert cell(outcome, "losses", depth="all").value == 0.5
    assert cell(made["paper"], "validity", arm="swap").value == 0.0


def test_with_one_replicate_w_is_a_dash_with_its_reason(tmp_path: Path) -> None:
    made = by_name(written(tmp_path, BASE, *branches(1)))
    found = cell(made["behaviour"], "w", depth="all")
    assert (found.value, "two controls" in found.note) == (None, True)
    assert cell(made["outcome"], "tau", depth="all").value == 0.0


def test_a_branch_of_another_prefix_is_named_and_left_out(tmp_path: Path) -> None:
    other = make_base(["pwd", "a", "b", "c"])
    stale = make_branch(other, 2, "swap", 9, ["x"])
    run = written(tmp_path, BASE, *branches(), stale)
    assert run.stale == (stale.id,)
    assert cell(by_name(run)["fork"], "n", arm="swap").value == 2
    assert any(stale.id in note for note in by_name(run)["quality"].notes)


def test_a_run_without_branches_has_tables_without_rows(tmp_path: Path) -> None:
    run = written(tmp_path, BASE)
    text = render_many(fork_tables(run), "text")
    assert "(no rows)" in text
    assert "nan" not in text.lower()


def test_text_fits_a_terminal(tmp_path: Path) -> None:
    text = render_many(all_tables(written(tmp_path, BASE, *branches())), "text")
    assert max(map(len, text.splitlines())) <= WIDTH
