"""An imported rollout is forked for real: prefix re-executed and compared, conversation handed over verbatim."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.exporters.run import export_run
from harness.importers.files import documents
from harness.importers.mini import MiniImporter
from harness.importers.protocol import Document, Imported
from harness.journal import RunFolder
from harness.record import Stop
from harness.tasks.pocket import Pocket
from tests.importers.made import SUBMIT, Asked, run_log, serve, study_text

FORMATS = ("mini-swe-agent-1", "mini-swe-agent-1.1")
FORKS = (3, 8)


def forkroll(*arguments: object, code: int = 0) -> str:
    """Runs the command line; what it printed."""
    command = [str(Path(sys.executable).with_name("forkroll")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout + done.stderr


class Continued:
    """A log, imported into a run that was then run."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder = folder
        self.log = run_log(form, Pocket(folder / "cache" / "pocket-log"), folder / "scratch")
        self.path = folder / f"{self.log['instance_id']}.traj.json"
        self.path.write_text(json.dumps(self.log, indent=2))
        self.run = folder / "run"
        with serve() as asked:
            self.asked: Asked = asked
            study = folder / "study.yaml"
            study.write_text(study_text(asked.url))
            self.said = forkroll(
                "import", "mini", self.path, folder / "absent", "--study", study, "--agent", "logged", "--run", self.run
            )
            forkroll("run", study, "--run", self.run, "--allow-unsandboxed")
        records = RunFolder(self.run).records()
        (self.base,) = records.bases.values()
        self.branches = sorted(records.branches.values(), key=lambda branch: branch.fork.step)


@pytest.fixture(scope="module", params=FORMATS)
def continued(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Continued:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORKROLL_CACHE", str(folder / "cache"))
        return Continued(folder, request.param)


def conversation(log: dict[str, Any], calls: int) -> list[dict[str, Any]]:
    """What the log's model had before it after so many calls, by the log's own rules: everything but `extra`."""
    messages, made = log["messages"][:2], 0
    for message in log["messages"][2:]:
        made += message["role"] == "assistant" or "interrupt_type" in message.get("extra", {})
        if made > calls:
            break
        messages.append(message)
    return [{key: value for key, value in message.items() if key != "extra"} for message in messages]


def essence(messages: list[dict[str, Any]]) -> list[Any]:
    """Messages without what no conversation is made of: members that are null, the stream's index of a call."""
    found = []
    for message in messages:
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls", [])]
        found.append((message["role"], message["content"], calls, message.get("tool_call_id")))
    return found


def test_each_depth_starts_from_the_conversation_of_the_log(continued: Continued) -> None:
    firsts = continued.asked.requests[::2]
    assert len(continued.branches) == len(FORKS) == len(firsts)
    expected = [essence(conversation(continued.log, step - 1)) for step in FORKS]
    got = [essence(request["messages"]) for request in firsts]
    assert sorted(got, key=len) == expected


def test_the_other_model_is_spoken_to_as_the_log_was(continued: Continued) -> None:
    textual = continued.log["trajectory_format"] == "mini-swe-agent-1"
    for first, second in zip(continued.asked.requests[::2], continued.asked.requests[1::2], strict=True):
        assert bool(first.get("tools")) is not textual
        said, answer = second["messages"][-2:]
        assert said["role"] == "assistant" and answer["role"] == ("user" if textual else "tool")
        assert answer["content"].startswith("<returncode>0</returncode>\n<output>\n/")


def test_the_prefix_is_re_executed_and_agrees(continued: Continued) -> None:
    for branch in continued.branches:
        check = branch.prefix
        assert check.actions == check.exit_codes_equal == check.outputs_equal == (2 if branch.fork.step == 3 else 6)
        assert (check.states, check.exit_codes_unknown, check.outputs_unknown) == (0, 0, 0)
        assert check.first_mismatch is None


def test_the_branch_ends_and_is_graded(continued: Continued) -> None:
    for branch in continued.branches:
        assert [action.command for step in branch.steps for action in step.reply.actions] == ["pwd", SUBMIT]
        assert branch.ending.stop is Stop.SUBMITTED
        assert branch.ending.outcome.status == "unresolved"
        assert branch.ending.spent.calls == branch.fork.step - 1 + 2
    assert b"+more" in continued.branches[1].ending.patch


def test_what_is_missing_is_named_and_the_rest_imported(continued: Continued) -> None:
    assert "imported: 1 bases" in continued.said
    assert "absent: there is no such file" in continued.said
    assert "limits.calls" in continued.said and "environment.timeout: 60" in continued.said


def test_the_base_is_exported_as_it_came_and_a_branch_as_prefix_and_own_steps(continued: Continued) -> None:
    into = continued.folder / "out"
    forkroll("export", continued.run, into, "--format", "traj")
    files = {path.parent.parent.name: path for path in into.rglob("*.traj.json")}
    assert set(files) == {"base-logged", "over-swap-step3-1", "over-swap-step8-1"}
    assert files["base-logged"].read_bytes() == continued.path.read_bytes()
    for branch in continued.branches:
        told = json.loads(files[f"over-swap-step{branch.fork.step}-1"].read_text())
        before = len(conversation(continued.log, branch.fork.step - 1))
        assert told["messages"][:before] == continued.log["messages"][:before]
        (again,) = read(files[f"over-swap-step{branch.fork.step}-1"])
        prefix = continued.base.steps[: branch.fork.step - 1]
        assert [s.reply.actions for s in again.base.steps] == [s.reply.actions for s in (*prefix, *branch.steps)]
        assert [s.observations for s in again.base.steps[len(prefix) :]] == [
            tuple(seen.model_copy(update={"shown": seen.shown}) for seen in s.observations) for s in branch.steps
        ]
        assert again.base.ending.submission == branch.ending.submission


def read(path: Path) -> list[Imported]:
    return [MiniImporter().read(found, "m") for found in documents([path]) if isinstance(found, Document)]


def test_predictions_have_one_name_an_arm(continued: Continued) -> None:
    into = continued.folder / "preds"
    forkroll("export", continued.run, into, "--format", "preds")
    task = continued.log["instance_id"]
    names = set()
    for path in into.rglob("preds.json"):
        (entry,) = json.loads(path.read_text()).values()
        assert entry["instance_id"] == task
        names.add(entry["model_name_or_path"])
    assert names == {"run/base-logged", "run/over-swap-step3-1", "run/over-swap-step8-1"}
    swapped = json.loads((into / "over-swap-step8-1" / "preds.json").read_text())
    assert swapped[task]["model_patch"].encode() == continued.branches[1].ending.patch


def test_a_run_without_its_imports_says_what_to_do(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(study_text("http://127.0.0.1:9/v1"))
    said = forkroll("run", study, "--run", tmp_path / "run", code=2)
    assert "forkroll import KIND LOGS --study STUDY --agent logged" in said
    assert not (tmp_path / "run").exists()


def test_an_imported_model_cannot_be_asked() -> None:
    with pytest.raises(UsageError, match=r"arm 'control' of direction 'over' asks 'logged'.*set `arms: \[swap\]`"):
        study_text("http://127.0.0.1:9/v1", arms=["swap", "control"])
    with pytest.raises(UsageError, match="arm 'swap' of direction 'over' asks 'logged'"):
        study_text("http://127.0.0.1:9/v1", directions={"over": {"base": "other", "swap": "logged"}})


def test_a_listing_for_a_person_and_for_a_program(continued: Continued) -> None:
    assert continued.log["trajectory_format"] in forkroll("import", "mini", continued.path, "--list")
    (table,) = json.loads(forkroll("import", "mini", continued.path, "--list", "--format", "json"))
    (row,) = table["rows"]
    assert row["rollouts"]["value"] == 1 and row["steps"]["value"] == 8 and row["format errors"]["value"] == 1


def test_exports_that_cannot_be_are_refused_and_write_nothing(continued: Continued, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    for into, form, problem in (
        (None, "html", "--format is one of canonical, traj, preds"),
        (None, "traj", "needs a folder to write to"),
        (tmp_path / "full", "preds", "is not an empty folder"),
        (tmp_path / "new", "canonical", "goes into the run folder"),
    ):
        with pytest.raises(UsageError, match=problem):
            export_run(continued.run, into, form)
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine.txt"]
