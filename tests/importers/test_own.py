"""A base of one run of ours becomes that of another, whose own model can then be the control arm."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.importers.own import read_runs
from harness.importers.protocol import Imported, Refused
from harness.journal import RunFolder
from harness.prompting import SUBMIT_WORD
from harness.record import commands
from tests.importers.test_continuing import forkroll

SUBMIT = f"echo {SUBMIT_WORD}"
STUDY = {
    "name": "first",
    "seed": 1,
    "tasks": {"set": "pocket", "count": 1},
    "sandbox": "local",
    "models": {
        "a": {"client": "scripted", "commands": ["ls", "echo x >> README.md", "cat README.md", SUBMIT]},
        "b": {"client": "scripted", "commands": ["ls", "pwd", "pwd", SUBMIT]},
    },
    "directions": {"up": {"base": "a", "swap": "b"}},
    "forks": {"rule": "absolute", "at": [4]},
    "replicates": 1,
}
"""In the tool-call dialect; the second study speaks text."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run `first`, and run `second` with the base of `first` in it."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORKROLL_CACHE", str(folder / "cache"))
        for name, more in (("first", {}), ("second", {"dialect": "text", "forks": {"rule": "absolute", "at": [2, 3]}})):
            (folder / f"{name}.yaml").write_text(json.dumps({**STUDY, "name": name, **more}))
        forkroll("run", folder / "first.yaml", "--run", folder / "first")
        second = folder / "second.yaml", "--run", folder / "second"
        forkroll("import", "own", folder / "first", "--study", *second, "--agent", "a")
        forkroll("run", *second)
        yield folder


def test_the_base_keeps_what_was_seen_and_takes_its_conversation_along(runs: Path) -> None:
    (before,) = RunFolder(runs / "first").records().bases.values()
    (after,) = RunFolder(runs / "second").records().bases.values()
    assert after.start_digest == before.start_digest
    for one, other in zip(before.steps, after.steps, strict=True):
        assert (other.reply, other.observations, other.state_digest) == (one.reply, one.observations, one.state_digest)
        assert other.messages is not None and other.messages[0]["tool_calls"]
    assert after.source is not None and after.source.format == "forkroll"


def test_both_arms_go_on_in_the_scaffold_of_the_first_run(runs: Path) -> None:
    branches = RunFolder(runs / "second").records().branches
    assert len(branches) == 4
    for branch in branches.values():
        scripted = STUDY["models"]["a" if branch.arm.name == "control" else "b"]["commands"]  # type: ignore[index]
        assert commands(branch.steps) == scripted[branch.fork.step - 1 :]
        assert all(step.reply.tool_calls for step in branch.steps)
        assert branch.prefix.states == branch.prefix.states_equal == branch.fork.step
        assert branch.prefix.outputs_equal == branch.prefix.actions == branch.fork.step - 1


def test_an_imported_base_is_not_run_again(runs: Path) -> None:
    (base,) = RunFolder(runs / "second").records().bases
    assert "was imported" in forkroll("rerun", runs / "second", base, code=2)


def test_bases_can_be_chosen_by_model_and_what_is_no_run_is_refused(runs: Path) -> None:
    found = list(read_runs([runs / "first", runs / "none"], "x", "b"))
    assert [type(one) for one in found] == [Refused]
    (one,) = read_runs([runs / "first"], "x", "a")
    assert isinstance(one, Imported) and one.base.agent == "x" and one.base.id.endswith(":x")
