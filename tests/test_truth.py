"""Known values are known: tables say what a live sandbox says, and brute force agrees with what can be computed."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.agent import ModelAgent
from harness.errors import SandboxError
from harness.loop import rollout
from harness.model.protocol import Sampling
from harness.model.simulated.client import SimulatedClient
from harness.model.simulated.menu import edit_command
from harness.model.simulated.profiles import PROFILES
from harness.prompting import OwnScaffold
from harness.record import Step, Stop, commands, seed_for
from harness.routing import Always
from harness.sandbox.local import LocalProvider
from harness.sandbox.protocol import Image, SandboxLimits
from harness.sandbox.recorded import Table, TableProvider, TableSandbox, record
from harness.tasks.pocket import Pocket, pocket_tasks
from harness.truth import (
    Estimate,
    Rolled,
    World,
    context_validity,
    fork_rates,
    known_fork,
    mean,
    solve_rates,
    start_at,
    tables,
)
from tests.made import FORMAT_ERROR, make_step

IDS = ("pocket__brace-template-1", "pocket__csv-quoting-1")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalProvider]:
    with LocalProvider(limits=SandboxLimits(), scratch=tmp_path_factory.mktemp("scratch")) as one:
        yield one


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def taken(provider: LocalProvider, cache: Path) -> Mapping[str, Table]:
    return tables(provider, cache, IDS)


@pytest.fixture(scope="module")
def worlds(taken: Mapping[str, Table], cache: Path) -> dict[str, World]:
    clients = {name: SimulatedClient.of(profile) for name, profile in PROFILES.items()}
    records = {task.instance_id: task for task in Pocket(cache).tasks()}
    return {name: World(records[name], table, clients) for name, table in taken.items()}


@pytest.fixture
def world(worlds: dict[str, World]) -> World:
    return worlds[IDS[0]]


def positions(one: Rolled, other: Rolled) -> float:
    """Share of places at which two lists of commands differ."""
    a, b = one.commands, other.commands
    same = sum(x == y for x, y in zip(a, b, strict=False))
    return 1 - same / max(len(a), len(b), 1)


def test_every_command_prints_the_same_bytes_again(provider: LocalProvider, cache: Path, world: World) -> None:
    assert tables(provider, cache, IDS[:1])[IDS[0]] == world.table


def test_a_table_says_what_a_live_sandbox_says(provider: LocalProvider, cache: Path, worlds: dict[str, World]) -> None:
    tasks = Pocket(cache)
    for seed, (name, world) in enumerate(worlds.items()):
        with provider.start(tasks.image(world.task)) as live:
            agents = {
                "small": ModelAgent(world.clients["small"], OwnScaffold(world.dialect), Sampling(temperature=1.0))
            }
            done = rollout(world.task, Always("small"), agents, live, limits=world.limits, seed=seed)
            diff = live.working_diff(world.task.base_commit)
        sandbox = TableSandbox(world.table)
        for step in done.steps:
            for action, seen in zip(step.reply.actions, step.observations, strict=False):
                told = sandbox.act(action.command, timeout_s=1.0)
                assert (told.output, told.exit_code, told.ended) == (seen.output, seen.exit_code, seen.ended), name
        assert sandbox.working_diff("") == diff


def test_checks_tell_the_versions_apart_as_the_tasks_promise(worlds: dict[str, World]) -> None:
    for world in worlds.values():
        verify = next(command for _, command in world.table.answers if command.startswith("python - "))
        codes = {state: world.table.answers[state, verify].exit_code for state in world.table.diffs}
        assert codes == {"repo": 1, "right": 0, "wrong_1": 1, "wrong_2": 0}
        assert world.table.answers["repo", "python run_tests.py"].exit_code == 0


def test_the_right_edit_is_what_grading_resolves(provider: LocalProvider, cache: Path, world: World) -> None:
    tasks = Pocket(cache)
    for state, diff in world.table.diffs.items():
        with provider.start(tasks.image(world.task)) as fresh:
            if state != "repo":
                outcome = tasks.grade(world.task, diff, fresh)
                assert (outcome.status == "resolved") == (state == "right")


def test_what_a_table_lacks_is_no_answer(world: World) -> None:
    sandbox = TableSandbox(world.table)
    for attempt in (
        lambda: sandbox.act("make", timeout_s=1.0),
        lambda: sandbox.read_file("x"),
        lambda: sandbox.write_file("x", b""),
    ):
        with pytest.raises(SandboxError, match=r"table"):
            attempt()
    with pytest.raises(SandboxError, match="no table"), TableProvider({}).start(Image("x", Path("/x"))):
        pass
    image = Image(world.table.image, Path("/x"))
    with TableProvider({image.name: world.table}).start(image) as one:
        before = one.digest()
        one.act(edit_command(pocket_tasks()[IDS[0]], "right"), timeout_s=1.0)
        assert one.digest() != before
        assert one.state == "right"


def test_a_look_that_changes_the_tree_cannot_be_taken(provider: LocalProvider, cache: Path, world: World) -> None:
    with pytest.raises(SandboxError, match="changed the tree"):
        record(
            Pocket(cache).image(world.task), provider, base_commit=world.task.base_commit,
            start="repo", moves={}, looks=["touch new"],
        )  # fmt: skip


def test_rollouts_repeat_with_their_seed_and_differ_without(world: World) -> None:
    assert world.roll("small", 1).commands == world.roll("small", 1).commands
    assert len({tuple(world.roll("small", seed).commands) for seed in range(20)}) > 5
    assert len({tuple(world.roll("exact", seed).commands) for seed in range(5)}) == 1


def test_brute_force_agrees_with_the_closed_form_of_one_step(world: World) -> None:
    """At the last decision of a rollout the odds of each command are known without any rollout."""
    base = next(one for seed in range(50) if len((one := world.roll("small", seed)).steps) >= 4)
    start = start_at(base.steps, 4)
    replies = [world.roll("small", seed_for("x", seed), start).steps[0].reply for seed in range(600)]
    stated = {reply.actions[0].command: reply.propensity for reply in replies if reply.actions}
    for command, p in stated.items():
        assert p is not None
        seen = sum(commands_of == command for reply in replies for commands_of in [a.command for a in reply.actions])
        assert abs(seen / 600 - p) < 4.5 * math.sqrt(p * (1 - p) / 600) + 1e-9


def test_a_swap_for_oneself_changes_nothing(world: World) -> None:
    base = world.roll("small", 3)
    start = start_at(base.steps, 3)
    known = known_fork(
        world, start=start, base_suffix=base.steps[2:], control="small", swap="small",
        n=300, distance=positions, seed=1,
    )  # fmt: skip
    for value in (known.tau, known.w, known.d2):
        assert abs(value.value) < 4 * value.error
    assert known.p_c.n == 300
    assert abs(known.validity_c.value - known.validity_s.value) < 4 * (known.validity_c.error + known.validity_s.error)


def test_an_exact_control_is_its_base_and_a_swap_parts_from_it(world: World) -> None:
    base = world.roll("exact", 0)
    start = start_at(base.steps, 2)
    known = known_fork(
        world, start=start, base_suffix=base.steps[1:], control="exact", swap="small", n=60, distance=positions, seed=1
    )
    assert known.d_cc.value == 0
    assert known.validity_c.value == 1.0
    assert known.validity_s.value < 0.7
    assert known.w.value == pytest.approx(known.d_sc.value)
    assert known.d2.value == pytest.approx(2 * known.d_sc.value - known.d_ss.value)
    assert known.tau.value == pytest.approx(known.p_s.value - known.p_c.value)


def test_context_validity_counts_the_decision_at_the_fork() -> None:
    def steps(*names: str) -> list[Step]:
        return [make_step(number, name, output=name.encode()) for number, name in enumerate(names, 1)]

    base = steps("a", "b", "c", "d")
    assert context_validity(base, steps("x", "b", "c", "d")) == 1 / 4
    assert context_validity(base, steps("a", "x")) == 2 / 4
    assert context_validity(base, steps("a", "b", "c", "x")) == 1.0
    assert context_validity(base, steps("a", "b", "c", "d", "e")) == 1.0
    assert context_validity(base, [make_step(1, "a", output=b"other")]) == 1 / 4
    assert context_validity(steps(FORMAT_ERROR, "b"), steps(FORMAT_ERROR, "b")) == 1.0
    with pytest.raises(ValueError, match="no step"):
        context_validity([], base)


def test_rates_are_what_the_profiles_are_for(worlds: dict[str, World]) -> None:
    rates = {name: solve_rates(worlds, name, n=60, seed=1) for name in ("small", "large")}
    for rate in rates.values():
        assert rate.resolved.n == 120
        assert 5 < rate.calls.value < 16
        assert rate.stops[Stop.SUBMITTED] > 100
    control = {name: fork_rates(worlds, name, name, fraction=0.3, n=40, seed=2).diverged for name in rates}
    swap = fork_rates(worlds, "small", "large", fraction=0.3, n=40, seed=2).diverged
    assert control["large"].value + 2 * control["large"].error < control["small"].value < swap.value


def test_a_branch_carries_what_its_prefix_spent(world: World) -> None:
    base = world.roll("small", 5)
    start = start_at(base.steps, 4)
    assert start.spent.calls == 3
    branch = world.roll("large", 1, start)
    assert branch.steps[0].index == 4
    assert len(branch.steps) <= 27
    assert commands(start.history) == commands(base.steps[:3])


def test_a_mean_tells_its_error() -> None:
    assert mean([0.0, 1.0, 0.0, 1.0]) == Estimate(0.5, pytest.approx(0.288675, abs=1e-6), 4)
    assert str(mean([1.0, 1.0])) == "1.0000 ± 0.0000 (n=2)"
