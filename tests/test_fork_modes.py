"""Three ways to a fork: they lead to one place, say what they saw, and fall back rather than fail."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.fidelity import prefix_fidelity
from analysis.fork_tables import quality_table
from analysis.load import load_run
from harness.agent import Agent, ModelAgent
from harness.branch import Stage
from harness.config import Study, to_yaml
from harness.journal import Journal, RunFolder
from harness.manifest import new_manifest
from harness.model.protocol import ModelClient, Sampling
from harness.model.scripted import ScriptedClient
from harness.prompting import OwnScaffold
from harness.record import Branch, Task, canonical_json
from harness.sandbox.local import LocalProvider
from harness.sandbox.namespace import NamespaceProvider, available
from harness.sandbox.protocol import SandboxLimits, SandboxProvider
from harness.sweep import Brakes, Tally, run
from harness.tasks.pocket import Pocket
from tests.test_sweep import SUBMIT, Flaky, make_study

BASE = [
    "echo one > note; rm README.md; mkdir -p new/folder; chmod 700 new; ln -s note link",
    "true",
    "echo two >> note; cat note; echo kept > /tmp/outside",
    "cat note /tmp/outside; ls -A",
    SUBMIT,
]
LOOK = "ls -A; cat note /tmp/outside"
SWAP = [LOOK, LOOK, "echo other > other; cat note", LOOK, *[SUBMIT] * 3]


@pytest.fixture(scope="module")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Pocket:
    return Pocket(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def tasks(pocket: Pocket) -> list[Task]:
    return list(pocket.tasks())[:1]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProvider]:
    if (why := available()) is not None:
        pytest.skip(why)
    with NamespaceProvider(limits=SandboxLimits(), scratch=tmp_path_factory.mktemp("scratch")) as made:
        yield made


def study(mode: str, at: tuple[int, ...] = (1, 2, 3, 4), base: list[str] = BASE, **forks: Any) -> Study:
    models = {"a": {"client": "scripted", "commands": base}, "b": {"client": "scripted", "commands": SWAP}}
    return make_study(models=models, forks={"rule": "absolute", "at": list(at), "mode": mode, **forks}, replicates=1)


Go = Callable[..., RunFolder]


@pytest.fixture
def go(tmp_path: Path, pocket: Pocket, tasks: list[Task], provider: SandboxProvider) -> Go:
    """Runs a session of a study in the folder of that name; `between` is called before the branches."""

    def session(
        wanted: Study,
        name: str = "run",
        *,
        clients: Mapping[str, ModelClient] | None = None,
        between: Callable[[RunFolder], None] = lambda folder: None,
        sandboxes: SandboxProvider = provider,
    ) -> RunFolder:
        made = clients or {name: ScriptedClient(model.commands) for name, model in wanted.models.items()}  # type: ignore[union-attr]

        def agents() -> Mapping[str, Agent]:
            return {name: ModelAgent(client, OwnScaffold(wanted.dialect), Sampling()) for name, client in made.items()}

        folder = RunFolder(tmp_path / name)
        with Journal(folder) as journal:
            journal.start_session(to_yaml(wanted), new_manifest(wanted, OwnScaffold(wanted.dialect), tasks))

            def watch(tally: Tally) -> None:
                if tally.phase == "branches":
                    between(folder)

            brakes = Brakes(wanted, journal, calls_before=0)
            run(wanted, tasks, Stage(wanted, pocket, sandboxes, agents), journal, brakes, watch)
        assert len(folder.records().branches) == len(wanted.arms) * len(wanted.forks.at)
        return folder

    return session


def branches(folder: RunFolder) -> list[Branch]:
    return sorted(folder.records().branches.values(), key=lambda branch: branch.id)


def quality(folder: RunFolder) -> dict[str, str]:
    return {row[0].text: row[1].text for row in quality_table(load_run(folder.path)).rows}


def test_all_modes_lead_to_one_canonical_export(go: Go) -> None:
    exports = {mode: go(study(mode), mode).export().read_bytes() for mode in ("reexecute", "snapshot", "verify")}
    assert len(set(exports.values())) == 1
    assert exports["snapshot"].count(b"\n") == 9


def test_a_snapshot_fork_runs_nothing_and_its_state_is_proved(go: Go) -> None:
    folder = go(study("snapshot"))
    for branch in branches(folder):
        check = branch.prefix
        assert (check.how, check.actions, check.fell_back) == ("snapshot", 0, None)
        assert (check.states, check.states_equal, check.first_mismatch) == (1, 1, None)
    seen = quality(folder)
    assert seen["forks by snapshot"] == "8"
    assert seen["prefix exit codes equal"] == "-"
    assert seen["prefix states equal"].startswith("8/8")


def test_what_lies_outside_the_working_tree_comes_along(go: Go) -> None:
    swap = next(branch for branch in branches(go(study("snapshot", (4,)))) if branch.arm.name == "swap")
    assert swap.steps[0].observations[0].output.endswith(b"one\ntwo\nkept\n")


def test_a_step_that_changed_nothing_shares_the_snapshot_before(go: Go) -> None:
    folder = go(study("snapshot"))
    (base,) = folder.records().bases.values()
    taken = [step.circumstances.snapshot for step in base.steps]
    assert None not in taken
    assert taken[0] == taken[1] != taken[2] == taken[3] == taken[4]
    assert {path.stem for path in folder.blobs_folder.iterdir()} == set(taken)


def test_verify_compares_two_sandboxes(go: Go) -> None:
    folder = go(study("verify"))
    for branch in branches(folder):
        check = branch.prefix
        assert (check.how, check.snapshot_equal, check.fell_back) == ("verify", True, None)
        assert check.actions == check.exit_codes_equal == branch.fork.step - 1
        assert check.first_mismatch is None
    assert quality(folder)["snapshots that equal re-execution"].startswith("8/8")


def test_verify_never_hides_a_difference(go: Go) -> None:
    """The base's state depends on the clock: what is re-executed is not what the snapshot holds."""
    clocked = ["date +%N > clock", "ls", SUBMIT]
    folder = go(study("verify", (2, 3), clocked))
    for branch in branches(folder):
        check = branch.prefix
        assert check.snapshot_equal is False
        assert (check.states_equal, check.first_mismatch) == (1, 1)
    seen = quality(folder)
    assert seen["snapshots that equal re-execution"].startswith("0/4")
    assert seen["branches with a clean prefix"].startswith("0/4")
    exact = go(study("snapshot", (2, 3), clocked), "exact")
    assert [branch.prefix.first_mismatch for branch in branches(exact)] == [None] * 4


@pytest.mark.parametrize("damage", ["remove", "corrupt", "empty"])
def test_a_lost_snapshot_is_re_executed_and_says_so(go: Go, damage: str) -> None:
    def lose(folder: RunFolder) -> None:
        for path in folder.blobs_folder.iterdir():
            if damage == "remove":
                path.unlink()
            else:
                path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:-1] + b"x")

    folder = go(study("snapshot"), between=lose)
    for branch in branches(folder):
        step, check = branch.fork.step, branch.prefix
        assert check.first_mismatch is None
        if step == 1:
            assert (check.how, check.fell_back) == ("snapshot", None)
        else:
            assert (check.how, check.actions) == ("reexecute", step - 1)
            assert check.fell_back == f"the snapshot of step {step - 1} is lost"
    seen = quality(folder)
    assert seen["forks that fell back to re-execution"] == "6"
    assert "fell back: the snapshot of step # is lost (6)" in quality_table(load_run(folder.path)).notes


def test_verify_without_a_snapshot_says_so(go: Go) -> None:
    folder = go(study("verify", (2,)), between=lambda folder: [path.unlink() for path in folder.blobs_folder.iterdir()])
    for branch in branches(folder):
        assert (branch.prefix.how, branch.prefix.snapshot_equal) == ("verify", None)
        assert branch.prefix.fell_back == "the snapshot of step 1 is lost"
    assert quality(folder)["snapshots that equal re-execution"] == "-"


def test_a_snapshot_of_another_state_is_not_used(go: Go) -> None:
    """A socket is in the state digest and in no archive."""
    bind = "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\""
    for branch in branches(go(study("verify", (2,), [bind, "ls", SUBMIT]), "verify")):
        check = branch.prefix
        assert (check.states_equal, check.snapshot_equal, check.first_mismatch) == (check.states, False, 1)
    for branch in branches(go(study("snapshot", (2,), [bind, "ls", SUBMIT]))):
        assert branch.prefix.how == "reexecute"
        assert branch.prefix.fell_back == "the snapshot of step 1 does not have the recorded state"
        assert branch.prefix.first_mismatch is None


def test_a_small_budget_keeps_what_the_forks_need(go: Go) -> None:
    grown = [f"head -c 200000 /dev/urandom > f{number}" for number in range(6)] + [SUBMIT]
    wanted = study("snapshot", (2, 6), grown, snapshot_bytes=2_400_000)
    used_last: list[str] = []

    def look(folder: RunFolder) -> None:
        blobs = {path.stem: path.stat() for path in folder.blobs_folder.iterdir()}
        assert sum(info.st_size for info in blobs.values()) <= 2_400_000
        used_last.append(max(blobs, key=lambda address: blobs[address].st_mtime_ns))

    folder = go(wanted, between=look)
    (base,) = folder.records().bases.values()
    assert used_last == [base.steps[4].circumstances.snapshot]
    # One of 1.0 MB and one of 1.2 MB fit: the first five had to make room.
    reasons = {branch.fork.step: branch.prefix.fell_back for branch in branches(folder)}
    assert reasons == {2: "the snapshot of step 1 is lost", 6: None}


def test_a_sandbox_that_takes_no_snapshots_falls_back(go: Go, tmp_path: Path) -> None:
    with LocalProvider(limits=SandboxLimits(), scratch=tmp_path / "scratch") as local:
        folder = go(study("snapshot", (1, 2), ["ls", "ls", SUBMIT]), sandboxes=local)
    (base,) = folder.records().bases.values()
    assert [step.circumstances.snapshot for step in base.steps] == [None] * 3
    assert not folder.blobs_folder.exists() or not list(folder.blobs_folder.iterdir())
    assert {(branch.fork.step, branch.prefix.fell_back) for branch in branches(folder)} == {
        (1, None),
        (2, "no snapshot was taken after step 1"),
    }


def test_a_second_session_uses_the_snapshots_of_the_first(go: Go) -> None:
    wanted = study("snapshot", (3, 4))
    folder = go(wanted)
    for path in folder.records_folder.iterdir():
        lines = [line for line in path.read_bytes().splitlines(True) if b'"kind":"base"' in line]
        path.write_bytes(b"".join(lines))
    (folder.blobs_folder / "left.part").write_bytes(b"of a session that was killed")
    assert [branch.prefix.how for branch in branches(go(wanted))] == ["snapshot"] * 4
    assert not (folder.blobs_folder / "left.part").exists()


def test_a_retried_base_is_forked_from_its_last_attempt(go: Go) -> None:
    wanted = study("snapshot", (2, 4))
    flaky = {"a": Flaky(ScriptedClient(BASE), 1), "b": ScriptedClient(SWAP)}
    folder = go(wanted, clients=flaky)
    assert len(folder.records().failures) == 1
    assert [(branch.prefix.how, branch.prefix.first_mismatch) for branch in branches(folder)] == [
        ("snapshot", None)
    ] * 4


@pytest.mark.parametrize("mode", ["reexecute", "snapshot", "verify"])
def test_a_background_process_marks_the_fork(go: Go, mode: str) -> None:
    base = ["sleep 60 >/dev/null 2>&1 &", "ls", "pkill sleep || kill $(pidof sleep); true", "ls", SUBMIT]
    folder = go(study(mode, (1, 2, 3, 5), base))
    (trajectory,) = folder.records().bases.values()
    assert [step.processes for step in trajectory.steps[:2]] == [("sleep",)] * 2
    marked = {branch.fork.step: branch.prefix.live_processes for branch in branches(folder)}
    assert (marked[1], marked[2], marked[3]) == ((), ("sleep",), ("sleep",))
    fidelity = prefix_fidelity(load_run(folder.path).rows)
    assert fidelity.live_branches[0] in (4, 6)  # 6 where there is neither pkill nor pidof
    assert quality(folder)["branches forked beside a live process"].startswith(("4/8", "6/8"))


def test_scoring_is_not_affected(go: Go) -> None:
    """Grading starts from the image, whatever brought a branch to its fork."""
    outcomes = {
        mode: [canonical_json(branch.ending) for branch in branches(go(study(mode), mode))]
        for mode in ("reexecute", "snapshot")
    }
    assert outcomes["reexecute"] == outcomes["snapshot"]


def test_what_was_cut_out_of_an_output_is_not_called_equal(go: Go) -> None:
    long = ["seq 20000; echo passed in 0.$RANDOM s; seq 20000", "ls", SUBMIT]
    for branch in branches(go(study("reexecute", (2,), long))):
        assert (branch.prefix.normalised_equal, branch.prefix.first_mismatch) == (0, 1)


def test_outputs_are_compared_raw_and_normalised(go: Go) -> None:
    """A duration differs from run to run; another word in its place is a difference."""
    noisy = ['echo "passed in 0.$RANDOM s"', "echo $RANDOM$RANDOM", "ls", SUBMIT]
    folder = go(study("reexecute", (2, 3), noisy))
    for branch in branches(folder):
        check = branch.prefix
        if branch.fork.step == 2:
            assert (check.outputs_equal, check.normalised_equal, check.first_mismatch) == (0, 1, None)
        else:
            assert (check.outputs_equal, check.normalised_equal, check.first_mismatch) == (0, 1, 2)
    seen = quality(folder)
    assert seen["prefix outputs equal, byte for byte"].startswith("0/6")
    assert seen["prefix outputs equal, normalised"].startswith("4/6")
    assert re.match(r"2/4", seen["branches with a clean prefix"])
