"""Planning is pure; running loses nothing: failures are rows, limits stop cleanly, resuming repeats nothing."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.agent import Agent, ModelAgent
from harness.branch import Stage
from harness.config import Study, validate
from harness.errors import ModelError
from harness.journal import Journal, RunFolder
from harness.model.protocol import Completion, Message, ModelClient, Said, Sampling, Scored
from harness.model.scripted import ScriptedClient
from harness.prompting import SUBMIT_WORD, OwnScaffold
from harness.record import Stop, Task
from harness.sandbox.local import LocalProvider
from harness.sandbox.protocol import SandboxLimits
from harness.sweep import FAILURES_IN_A_ROW, Brakes, Tally, plan_bases, plan_branches, run
from harness.tasks.pocket import Pocket
from tests.made import make_base

SUBMIT = f"echo {SUBMIT_WORD}"
ONE = ["ls", "cat README.md", "echo x >> README.md", SUBMIT]
OTHER = ["ls", "pwd", SUBMIT, SUBMIT]


def make_study(**more: Any) -> Study:
    content = {
        "name": "s",
        "seed": 1,
        "models": {"a": {"client": "scripted", "commands": ONE}, "b": {"client": "scripted", "commands": OTHER}},
        "directions": {"up": {"base": "a", "swap": "b"}},
        "forks": {"rule": "absolute", "at": [2, 3]},
        "workers": 2,
        "retries": 1,
    }
    return validate({**content, **more}, "test")


class Flaky:
    """Fails the first `failures` calls, then does as the client behind it."""

    def __init__(self, client: ModelClient, failures: int) -> None:
        self._client, self._left, self._lock = client, failures, threading.Lock()

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        seed: int,
    ) -> Completion:
        with self._lock:
            self._left -= 1
            if self._left >= 0:
                raise ModelError("the server is away")
        return self._client.complete(messages, tools=tools, sampling=sampling, seed=seed)

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        return Scored(None, None, None, "not asked for here")


@pytest.fixture(scope="module")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> Pocket:
    return Pocket(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def tasks(pocket: Pocket) -> list[Task]:
    return list(pocket.tasks())[:1]


Sweep = Callable[..., list[Tally]]


@pytest.fixture
def sweep(tmp_path: Path, pocket: Pocket, tasks: list[Task]) -> Iterator[Sweep]:
    """Runs a study in tmp_path/run with real local sandboxes; returns the tallies."""
    provider = LocalProvider(limits=SandboxLimits(), scratch=tmp_path / "scratch")

    def go(
        study: Study, clients: Mapping[str, ModelClient] | None = None, stop: Callable[[Tally], bool] | None = None
    ) -> list[Tally]:
        made = clients or {"a": ScriptedClient(ONE), "b": ScriptedClient(OTHER)}

        def new_agents() -> Mapping[str, Agent]:
            return {name: ModelAgent(client, OwnScaffold(study.dialect), Sampling()) for name, client in made.items()}

        folder = RunFolder(tmp_path / "run")
        with Journal(folder) as journal:
            brakes = Brakes(study, journal, calls_before=folder.records().calls())
            stage = Stage(study, pocket, provider, new_agents)

            def watch(tally: Tally) -> None:
                if stop is not None and stop(tally):
                    brakes.requested.set()

            return run(study, tasks, stage, journal, brakes, watch)

    yield go
    provider.close()


def records(tmp_path: Path) -> Any:
    return RunFolder(tmp_path / "run").records()


def test_the_plan_is_pure_and_ids_say_what_not_when(tasks: list[Task]) -> None:
    study = make_study()
    bases = {f"{task.instance_id}:a": make_base(ONE, task=task.instance_id) for task in tasks}
    once, twice = (plan_branches(study, tasks, bases) for _ in range(2))
    assert [(cell.id, cell.seed) for cell in once] == [(cell.id, cell.seed) for cell in twice]
    assert len({cell.id for cell in once}) == len({cell.seed for cell in once}) == 2 * 2 * 2
    assert plan_branches(study, tasks, {}) == []


def test_more_replicates_keep_the_cells_there_were(tasks: list[Task]) -> None:
    bases = {f"{task.instance_id}:a": make_base(ONE, task=task.instance_id) for task in tasks}
    few = {(cell.id, cell.seed) for cell in plan_branches(make_study(), tasks, bases)}
    many = {(cell.id, cell.seed) for cell in plan_branches(make_study(replicates=4), tasks, bases)}
    assert few < many


def test_no_seed_is_shared_between_a_base_and_its_branches(tasks: list[Task]) -> None:
    study = make_study()
    bases = {f"{task.instance_id}:a": make_base(ONE, task=task.instance_id) for task in tasks}
    seeds = [cell.seed for cell in plan_bases(study, tasks)] + [
        cell.seed for cell in plan_branches(study, tasks, bases)
    ]
    assert len(set(seeds)) == len(seeds)


def test_directions_that_share_a_base_model_share_the_base(tasks: list[Task]) -> None:
    models = {"a": {"client": "scripted", "commands": ONE}, "b": {"client": "scripted", "commands": OTHER}}
    directions = {"one": {"base": "a", "swap": "b"}, "two": {"base": "a", "swap": "b"}}
    study = make_study(models=models, directions=directions)
    assert len(plan_bases(study, tasks)) == len(tasks)


def test_arms_of_a_fork_are_in_a_seeded_order(tasks: list[Task]) -> None:
    bases = {f"{task.instance_id}:a": make_base(ONE, task=task.instance_id) for task in tasks}
    orders = {tuple(c.arm.name for c in plan_branches(make_study(seed=seed), tasks, bases)[:4]) for seed in range(20)}
    assert len(orders) > 1


def test_a_run_is_whole_and_a_second_one_has_nothing_to_do(sweep: Sweep, tmp_path: Path, tasks: list[Task]) -> None:
    study = make_study()
    first = sweep(study)
    found = records(tmp_path)
    assert [tally.done for tally in first] == [1, 8]
    assert (len(found.bases), len(found.branches), found.failures) == (1, 8, [])
    assert [tally.total for tally in sweep(study)] == [0, 0]


def test_branches_start_where_their_base_was_and_controls_repeat_it(sweep: Sweep, tmp_path: Path) -> None:
    sweep(make_study())
    found = records(tmp_path)
    for branch in found.branches.values():
        base = found.bases[branch.fork.base_id]
        assert branch.prefix.first_mismatch is None
        assert branch.prefix.states == branch.fork.step
        assert branch.steps[0].index == branch.fork.step
        assert branch.ending.spent.calls == branch.fork.step - 1 + len(branch.steps)
        if branch.arm.name == "control":
            said = [step.reply.actions for step in branch.steps]
            assert said == [step.reply.actions for step in base.steps[branch.fork.step - 1 :]]
            assert branch.ending.patch == base.ending.patch != b""
            assert branch.steps[-1].state_digest == base.steps[-1].state_digest


def test_a_failed_attempt_is_a_row_and_the_next_one_counts_on(sweep: Sweep, tmp_path: Path) -> None:
    sweep(make_study(workers=1), {"a": Flaky(ScriptedClient(ONE), 1), "b": ScriptedClient(OTHER)})
    found = records(tmp_path)
    (failure,) = found.failures
    assert (failure.side, failure.message, failure.provenance.attempt) == ("model", "the server is away", 1)
    assert found.bases[failure.id].provenance.attempt == 2


def test_a_cell_that_keeps_failing_is_owed_not_scored(sweep: Sweep, tmp_path: Path) -> None:
    tallies = sweep(make_study(), {"a": ScriptedClient(ONE), "b": ScriptedClient(["ls"])})
    found = records(tmp_path)
    assert tallies[1].lost == 4
    assert {failure.side for failure in found.failures} == {"model"}
    assert len(found.failures) == 8
    assert all(branch.arm.name == "control" for branch in found.branches.values())
    kept = [failure for failure in found.failures if "@3" in failure.id]
    assert all(failure.steps == () for failure in kept)


def test_a_failure_keeps_the_steps_that_had_been_done(sweep: Sweep, tmp_path: Path) -> None:
    sweep(make_study(), {"a": ScriptedClient(ONE[:2]), "b": ScriptedClient(OTHER)})
    assert {len(failure.steps) for failure in records(tmp_path).failures} == {2}


def test_when_everything_fails_the_run_stops_and_says_so(sweep: Sweep, tmp_path: Path) -> None:
    study = make_study(arms=["swap"], replicates=8, retries=0)
    tallies = sweep(study, {"a": ScriptedClient(ONE), "b": ScriptedClient(["ls"])})
    assert tallies[1].stopped is not None and "in a row failed" in tallies[1].stopped
    assert FAILURES_IN_A_ROW <= len(records(tmp_path).failures) < 16


def test_a_limit_on_calls_stops_before_a_cell_and_resumes(sweep: Sweep, tmp_path: Path) -> None:
    limited = make_study(limits={"run": {"calls": 6}}, workers=1)
    tallies = sweep(limited)
    assert tallies[-1].stopped is not None and "limits.run.calls" in tallies[-1].stopped
    assert 6 <= records(tmp_path).calls() < 6 + len(ONE)
    assert sweep(limited)[0].stopped is None
    sweep(make_study())
    assert len(records(tmp_path).branches) == 8


def test_limits_on_time_and_disk_stop_before_a_cell(sweep: Sweep, tmp_path: Path) -> None:
    late = sweep(make_study(limits={"run": {"seconds": 1e-6}}))
    (tmp_path / "run" / "filler").write_bytes(b"xx")
    full = sweep(make_study(limits={"run": {"disk_bytes": 2}}))
    assert late[0].stopped is not None and "limits.run.seconds" in late[0].stopped
    assert full[0].stopped is not None and "limits.run.disk_bytes" in full[0].stopped
    assert records(tmp_path).finished() == frozenset()


def test_a_request_to_stop_finishes_what_is_under_way(sweep: Sweep, tmp_path: Path) -> None:
    tallies = sweep(make_study(), stop=lambda tally: tally.phase == "branches")
    assert tallies[1].stopped == "interrupted"
    assert len(records(tmp_path).bases) == 1
    sweep(make_study())
    assert len(records(tmp_path).branches) == 8


def test_the_prefix_counts_against_a_branchs_call_limit(sweep: Sweep, tmp_path: Path) -> None:
    sweep(make_study(limits={"calls": 3}))
    branches = records(tmp_path).branches.values()
    assert {branch.ending.stop for branch in branches if branch.arm.name == "control"} == {Stop.CALL_LIMIT}
    assert all(branch.ending.spent.calls == 3 for branch in branches)
