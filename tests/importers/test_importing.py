"""Logs into a run folder: what fits the study becomes a base once, everything else is counted by its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError, JournalError, UsageError
from harness.importers.verdicts import read_verdicts
from harness.importing import Taken, Wanted, import_logs, list_logs
from harness.journal import RunFolder
from harness.record import Stop
from harness.tasks.pocket import pocket_tasks
from tests.importers.made import CONFIG, study_text
from tests.importers.test_mini import EXIT, answer, log, reply

FIRST, SECOND = list(pocket_tasks())[:2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKROLL_CACHE", str(tmp_path / "cache"))


def told(task: str, **more: Any) -> dict[str, Any]:
    info = {"config": CONFIG["mini-swe-agent-1.1"], **more.pop("info", {})}
    return log(reply("ls"), answer("1", 0), EXIT, info=info, instance_id=task, **more)


def write(folder: Path, name: str, content: Any) -> None:
    path = folder / "logs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def take(
    folder: Path, *, said: list[str] | None = None, run: str | None = None, verdicts: Path | None = None, **study: Any
) -> Taken:
    path = folder / "study.yaml"
    path.write_text(study_text("http://127.0.0.1:9/v1", **study))
    wanted = Wanted("mini", [folder / "logs"], str(path), [], "logged", folder / "run", run, verdicts)
    return import_logs(wanted, (said if said is not None else []).append)


def test_what_fits_is_taken_and_the_rest_counted_by_reason(tmp_path: Path) -> None:
    write(tmp_path, "a.traj.json", told(FIRST))
    write(tmp_path, "b.traj.json", told(FIRST))
    write(tmp_path, "c.traj.json", told("elsewhere"))
    write(tmp_path, "d.traj.json", {**log(EXIT), "instance_id": SECOND})
    write(tmp_path, "e.traj.json", {"cut": 1})
    write(tmp_path, "f.traj.json", log(reply("ls"), EXIT, instance_id=SECOND, info={"config": None}))
    taken = take(tmp_path)
    assert taken.imported == [f"{FIRST}:logged"]
    assert taken.left_out == {
        "logged has a base of that task already": ["b.traj.json"],
        "not among the study's tasks": ["c.traj.json"],
        "holds no step: there is nothing to fork": ["d.traj.json"],
        "the log holds no settings (info.config): how its model was spoken to is not known": ["f.traj.json"],
    }
    assert [one.line() for one in taken.refused] == ["e.traj.json: trajectory_format: missing"]
    assert taken.lines()[0] == f"imported: 1 bases into {tmp_path / 'run'}"
    entry = RunFolder(tmp_path / "run").manifest()["sessions"][-1]["imported"]
    assert (entry["bases"], entry["refused"]) == (1, ["e.traj.json: trajectory_format: missing"])


def test_an_import_extends_a_run_and_replaces_nothing(tmp_path: Path) -> None:
    write(tmp_path, "a.traj.json", told(FIRST))
    take(tmp_path)
    before = RunFolder(tmp_path / "run").records().bases
    write(tmp_path, "b.traj.json", told(SECOND, info={"exit_status": "Timeout"}))
    assert take(tmp_path).imported == [f"{SECOND}:logged"]
    after = RunFolder(tmp_path / "run").records()
    assert after.bases[f"{FIRST}:logged"] == before[f"{FIRST}:logged"]
    assert after.bases[f"{SECOND}:logged"].ending.stop is Stop.BROKEN_OFF
    assert after.calls() == 0


def test_of_several_runs_one_can_be_taken(tmp_path: Path) -> None:
    lines = [{"run": run, "resolved": run == "two", "traj": told(FIRST)} for run in ("one", "two")]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "all.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert take(tmp_path, run="two").imported == [f"{FIRST}:logged"]
    (base,) = RunFolder(tmp_path / "run").records().bases.values()
    assert base.source is not None
    assert (base.source.run, base.source.name, base.ending.outcome.status) == ("two", "all.jsonl:2", "resolved")


SUMMARY = {"resolved_ids": [FIRST], "unresolved_ids": ["a"], "empty_patch_ids": ["b"], "error_ids": ["c"]}
REPORTS = [
    (json.dumps(SUMMARY), {FIRST: True, "a": False, "b": False}),
    (json.dumps({FIRST: {"resolved": True}, "a": {"resolved": False}, "b": {}}), {FIRST: True, "a": False}),
    (json.dumps([{"instance_id": FIRST, "resolved": True}, {"instance_id": "a", "resolved": None}]), {FIRST: True}),
    (
        f'{{"instance_id": "{FIRST}", "resolved": true}}\n\n{{"instance_id": "a", "resolved": false}}\n',
        {FIRST: True, "a": False},
    ),
    (json.dumps({"instance_id": FIRST, "resolved": True}), {FIRST: True}),
]


@pytest.mark.parametrize(("report", "expected"), REPORTS)
def test_verdicts_of_a_report(tmp_path: Path, report: str, expected: dict[str, bool]) -> None:
    path = tmp_path / "report.json"
    path.write_text(report)
    assert read_verdicts(path) == expected


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        ("{}", "holds no verdict"),
        ("[1]", "holds no verdict"),
        ('{"instance_id": "a", "resolved": true}\n{"insta', "report.json:2: not JSON"),
        (
            json.dumps({"resolved_ids": ["a"], "unresolved_ids": ["a"]}),
            "says of a that it is resolved and that it is not",
        ),
    ],
)
def test_a_report_that_cannot_be_used_is_refused(tmp_path: Path, report: str, problem: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(report)
    with pytest.raises(UsageError, match=problem):
        read_verdicts(path)


def test_a_report_judges_logs_that_hold_no_verdict(tmp_path: Path) -> None:
    write(tmp_path, "a.traj.json", told(FIRST))
    write(tmp_path, "b.traj.json", told(SECOND))
    (tmp_path / "report.json").write_text(json.dumps(SUMMARY))
    take(tmp_path, verdicts=tmp_path / "report.json")
    bases = RunFolder(tmp_path / "run").records().bases
    assert bases[f"{FIRST}:logged"].ending.outcome.status == "resolved"
    assert bases[f"{SECOND}:logged"].ending.outcome.status == "unscored"


def test_where_nothing_fits_nothing_is_written(tmp_path: Path) -> None:
    write(tmp_path, "c.traj.json", told("elsewhere"))
    assert take(tmp_path).imported == []
    assert not (tmp_path / "run").exists()


def test_where_study_and_log_differ_is_said(tmp_path: Path) -> None:
    write(tmp_path, "a.traj.json", told(FIRST))
    said: list[str] = []
    take(tmp_path, said=said, forks={"rule": "absolute", "at": [1], "mode": "verify"})
    assert any("forks.mode verify" in line for line in said)
    assert any("`limits.action_seconds` is 20" in line and "environment.timeout: 60" in line for line in said)


def test_usage_errors_write_nothing(tmp_path: Path) -> None:
    write(tmp_path, "a.traj.json", told(FIRST))
    study = tmp_path / "study.yaml"
    study.write_text(study_text("http://127.0.0.1:9/v1"))
    logs = [tmp_path / "logs"]
    with pytest.raises(ConfigError, match="'other' is the base of no direction; bases: logged"):
        import_logs(Wanted("mini", logs, str(study), [], "other", tmp_path / "run"), print)
    with pytest.raises(UsageError, match="unknown kind of log 'maxi'; known: mini, sweagent, own"):
        import_logs(Wanted("maxi", logs, str(study), [], "logged", tmp_path / "run"), print)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("x")
    with pytest.raises(JournalError, match="is not empty and is no run folder"):
        import_logs(Wanted("mini", logs, str(study), [], "logged", tmp_path / "run"), print)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_a_listing_counts_by_run_model_and_format(tmp_path: Path) -> None:
    write(tmp_path, "a.traj.json", told(FIRST))
    write(tmp_path, "b.traj.json", told(SECOND, info={"exit_status": "Timeout"}))
    write(tmp_path, "c.traj.json", [])
    listing = list_logs("mini", [tmp_path / "logs"], None)
    (held,) = listing.held
    assert (held.model, held.rollouts, held.steps, held.tasks) == ("second/model", 2, 2, {FIRST, SECOND})
    assert dict(held.statuses) == {"Submitted": 1, "Timeout": 1}
    assert (held.graded, held.input_tokens, held.output_tokens) == (0, None, None)
    assert [one.line() for one in listing.refused] == ["c.traj.json: a list, not a trajectory"]
