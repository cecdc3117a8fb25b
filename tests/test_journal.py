"""The run folder keeps whole records, names what is corrupt, and drops nothing."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import JournalError
from harness.journal import Journal, RunFolder
from harness.record import Failure, Provenance
from tests.made import make_base, make_branch, make_step


def written(folder: Path, *records: object) -> RunFolder:
    place = RunFolder(folder)
    with Journal(place) as journal:
        for record in records:
            journal.append(record)  # type: ignore[arg-type]
    return place


BASE = make_base(["ls", "cat a"])
BRANCH = make_branch(BASE, 2, "swap", 1, ["pwd"])


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    records = written(tmp_path, BASE, BRANCH).records()
    assert records.bases == {BASE.id: BASE}
    assert records.branches == {BRANCH.id: BRANCH}
    assert records.finished() == {BASE.id, BRANCH.id}
    assert records.calls() == 3


def test_a_failure_is_a_row_and_its_cell_stays_owed(tmp_path: Path) -> None:
    failure = Failure(id="x", side="sandbox", message="gone", steps=(make_step(1, "ls"),), provenance=Provenance())
    records = written(tmp_path, failure).records()
    assert records.failures == [failure]
    assert records.finished() == frozenset()
    assert records.calls() == 1


@settings(max_examples=60)
@given(st.data())
def test_a_file_torn_anywhere_loses_its_last_record_only(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = written(tmp_path_factory.mktemp("run"), BASE, BRANCH)
    (file,) = place.records_folder.glob("*.jsonl")
    whole = file.read_bytes()
    first = whole.index(b"\n") + 1
    cut = data.draw(st.integers(min_value=first, max_value=len(whole) - 1))
    file.write_bytes(whole[:cut])
    records = place.records()
    assert list(records.bases) == [BASE.id]
    assert records.branches == {}
    assert records.torn == ([file.name] if cut > first else [])


def test_after_a_torn_line_a_session_writes_a_file_of_its_own(tmp_path: Path) -> None:
    place = written(tmp_path, BASE)
    (file,) = place.records_folder.glob("*.jsonl")
    file.write_bytes(file.read_bytes() + b'{"kind": "bra')
    records = written(tmp_path, BRANCH).records()
    assert records.finished() == {BASE.id, BRANCH.id}
    assert records.torn == [file.name]


@pytest.mark.parametrize(
    "line", [b"", b"not json", b"{}", b'{"kind": "base"}', b'{"kind": "other"}', b"\xff\xfe", b'"base"', b"null"]
)
def test_a_corrupt_line_is_named_with_file_and_line(tmp_path: Path, line: bytes) -> None:
    place = written(tmp_path, BASE)
    (file,) = place.records_folder.glob("*.jsonl")
    file.write_bytes(file.read_bytes() + line + b"\n")
    with pytest.raises(JournalError, match=rf"{file.name}:2: not a record"):
        place.records()


def test_an_unknown_field_is_corruption_not_decoration(tmp_path: Path) -> None:
    place = written(tmp_path, BASE)
    (file,) = place.records_folder.glob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"agent":', b'"agnet":', 1))
    with pytest.raises(JournalError, match=":1: not a record"):
        place.records()


def test_a_record_written_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="recorded twice"):
        written(tmp_path, BASE, BASE).records()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with (
        Journal(RunFolder(tmp_path)),
        pytest.raises(JournalError, match="another forkroll"),
        Journal(RunFolder(tmp_path)),
    ):
        pass


def test_a_closed_journal_refuses_records(tmp_path: Path) -> None:
    with Journal(RunFolder(tmp_path)) as journal:
        pass
    with pytest.raises(JournalError, match="closed"):
        journal.append(BASE)


def test_steps_under_way_are_seen_and_gone_once_recorded(tmp_path: Path) -> None:
    place = RunFolder(tmp_path)
    with Journal(place) as journal:
        with journal.steps_of(BASE.id) as log:
            for step in BASE.steps:
                log(step)
            assert place.rollouts_under_way() == {BASE.id: list(BASE.steps)}
        journal.append(BASE)
        assert place.rollouts_under_way() == {}


def test_the_canonical_export_does_not_depend_on_order_or_circumstances(tmp_path: Path) -> None:
    again = BASE.model_copy(update={"provenance": Provenance(attempt=3, host="elsewhere", seconds=9)})
    one = written(tmp_path / "one", BASE, BRANCH).export().read_bytes()
    other = written(tmp_path / "other", BRANCH, again).export().read_bytes()
    assert one == other
    assert b"elsewhere" not in other


def test_a_folder_without_a_study_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="not a run folder"):
        RunFolder(tmp_path).require()
