"""What a study of the simulated model should find: known values by brute force, each with its Monte Carlo error.

The real loop, the real agent and the real prompts run over tables instead of shells, so that thousands of seeded
rollouts take seconds. A branch resolves when it ends with the right edit in place: what hidden tests would say.
Every value is a mean over independent draws; `error` is its standard error and `n` their number.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.agent import ModelAgent
from harness.config import LimitsSection
from harness.loop import NOTHING_YET, Start, rollout, spend
from harness.model.protocol import Sampling
from harness.model.simulated.client import SimulatedClient
from harness.model.simulated.menu import VERSIONS, edit_command, menu_of
from harness.prompting import OwnScaffold
from harness.record import Step, Stop, Task, commands, seed_for
from harness.routing import Always
from harness.sandbox.protocol import SandboxProvider
from harness.sandbox.recorded import Table, TableSandbox, record
from harness.scaffold.protocol import Dialect
from harness.tasks.pocket import Pocket, pocket_tasks

STUDY_CALLS = 30


@dataclass(frozen=True)
class Estimate:
    """A mean over independent draws."""

    value: float
    error: float
    """Standard error; 0 where all draws agree, which for n draws of a rate bounds it by 3/n."""
    n: int

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f} (n={self.n})"


def mean(draws: Sequence[float]) -> Estimate:
    """The mean of independent draws; at least two."""
    return Estimate(statistics.fmean(draws), statistics.stdev(draws) / math.sqrt(len(draws)), len(draws))


@dataclass(frozen=True)
class Rolled:
    """One continuation."""

    steps: tuple[Step, ...]
    stop: Stop
    resolved: bool

    @property
    def commands(self) -> list[str]:
        """The flat list of commands."""
        return commands(self.steps)


Distance = Callable[[Rolled, Rolled], float]
"""Between two continuations of one prefix, such as the edit distance of their commands."""


@dataclass(frozen=True)
class World:
    """One task, the models that may act, and the rules of the study."""

    task: Task
    table: Table
    clients: Mapping[str, SimulatedClient]
    """The study's name of each model -> the model."""
    sampling: Sampling = field(default_factory=Sampling)
    dialect: Dialect = "tool_call"
    limits: LimitsSection = field(default_factory=lambda: LimitsSection(calls=STUDY_CALLS))

    def roll(self, agent: str, seed: int, start: Start = NOTHING_YET) -> Rolled:
        """One rollout of `agent` from `start`, in memory."""
        sandbox = TableSandbox(self.table)
        for command in commands(start.history):
            sandbox.act(command, timeout_s=1.0)
        agents = {agent: ModelAgent(self.clients[agent], OwnScaffold(self.dialect), self.sampling)}
        done = rollout(self.task, Always(agent), agents, sandbox, limits=self.limits, seed=seed, start=start)
        return Rolled(done.steps, done.stop, sandbox.state == "right")

    def many(self, agent: str, n: int, seed: int, start: Start = NOTHING_YET) -> list[Rolled]:
        """`n` independent rollouts."""
        return [self.roll(agent, seed_for("truth", seed, agent, number), start) for number in range(n)]


def table_of(task: Task, tasks: Pocket, provider: SandboxProvider) -> Table:
    """The table of one bundled task: each menu command run once in each state of its files."""
    pocket = pocket_tasks()[task.instance_id]
    moves = {edit_command(pocket, version): version for version in VERSIONS}
    every = [entry.command for entry in menu_of(pocket).entries if entry.command is not None]
    return record(
        tasks.image(task),
        provider,
        base_commit=task.base_commit,
        start="repo",
        moves={command: str(version) for command, version in moves.items()},
        looks=[command for command in every if command not in moves],
    )


def tables(provider: SandboxProvider, cache: Path, ids: Sequence[str] | None = None) -> dict[str, Table]:
    """instance_id -> table, for all bundled tasks or for `ids`."""
    tasks = Pocket(cache)
    wanted = [task for task in tasks.tasks() if ids is None or task.instance_id in ids]
    return {task.instance_id: table_of(task, tasks, provider) for task in wanted}


@dataclass(frozen=True)
class KnownFork:
    """The truth at one fork: what unlimited control and swap branches would show."""

    p_c: Estimate
    """Probability that a control branch resolves."""
    p_s: Estimate
    tau: Estimate
    """p_s - p_c."""
    d_cc: Estimate
    """Mean distance of two control branches: the noise floor."""
    d_ss: Estimate
    d_sc: Estimate
    w: Estimate
    """d_sc - d_cc."""
    d2: Estimate
    """2 d_sc - d_cc - d_ss."""
    validity_c: Estimate
    """Context validity of the base's suffix for the control."""
    validity_s: Estimate


def known_fork(
    world: World,
    *,
    start: Start,
    base_suffix: Sequence[Step],
    control: str,
    swap: str,
    n: int,
    distance: Distance,
    seed: int,
) -> KnownFork:
    """Known values at the fork after `start.history`, from `n` branches an arm; `base_suffix` is what the base did."""
    c = world.many(control, n, seed_for(seed, "control"), start)
    s = world.many(swap, n, seed_for(seed, "swap"), start)
    blocks = [_block(c[at : at + 2], s[at : at + 2], distance) for at in range(0, n - 1, 2)]
    won_c, won_s = [float(one.resolved) for one in c], [float(one.resolved) for one in s]
    return KnownFork(
        p_c=mean(won_c),
        p_s=mean(won_s),
        tau=mean([after - before for after, before in zip(won_s, won_c, strict=True)]),
        d_cc=mean([block.cc for block in blocks]),
        d_ss=mean([block.ss for block in blocks]),
        d_sc=mean([block.sc for block in blocks]),
        w=mean([block.sc - block.cc for block in blocks]),
        d2=mean([2 * block.sc - block.cc - block.ss for block in blocks]),
        validity_c=mean([context_validity(base_suffix, one.steps) for one in c]),
        validity_s=mean([context_validity(base_suffix, one.steps) for one in s]),
    )


@dataclass(frozen=True)
class _Block:
    """Mean distances within two control and two swap branches; blocks are independent of each other."""

    cc: float
    ss: float
    sc: float


def _block(c: Sequence[Rolled], s: Sequence[Rolled], distance: Distance) -> _Block:
    between = statistics.fmean(distance(one, other) for one in s for other in c)
    return _Block(distance(c[0], c[1]), distance(s[0], s[1]), between)


def same_step(one: Step, other: Step) -> bool:
    """Whether two steps add the same to a history: the same commands and what they printed, notes aside."""
    seen = [[item.sha256 for item in step.observations] for step in (one, other)]
    return commands([one]) == commands([other]) and seen[0] == seen[1]


def context_validity(base_suffix: Sequence[Step], branch: Sequence[Step]) -> float:
    """Share of the base's decisions from the fork on that the branch, too, reaches by the base's own history.

    The decision at the fork itself counts: it is always reached (estimands M22).
    """
    if not base_suffix:
        raise ValueError("the base has no step from the fork on")
    pairs = zip(base_suffix, branch, strict=False)
    agreed = next((at for at, pair in enumerate(pairs) if not same_step(*pair)), min(len(base_suffix), len(branch)))
    return min(agreed + 1, len(base_suffix)) / len(base_suffix)


@dataclass(frozen=True)
class Rates:
    """How one model does on a set of tasks; clusters are tasks, `n` counts rollouts."""

    resolved: Estimate
    calls: Estimate
    stops: Mapping[Stop, int]
    by_task: Mapping[str, float]
    """instance_id -> share resolved."""


def solve_rates(worlds: Mapping[str, World], agent: str, *, n: int, seed: int) -> Rates:
    """`n` rollouts a task. The errors are those of the draws, given the tasks."""
    rolled = {name: world.many(agent, n, seed_for(seed, name)) for name, world in worlds.items()}
    everything = [one for some in rolled.values() for one in some]
    return Rates(
        resolved=mean([float(one.resolved) for one in everything]),
        calls=mean([float(len(one.steps)) for one in everything]),
        stops={stop: sum(one.stop is stop for one in everything) for stop in Stop},
        by_task={name: statistics.fmean(one.resolved for one in some) for name, some in rolled.items()},
    )


@dataclass(frozen=True)
class ForkRates:
    """How often one branch from a random base parts from it in content, and in outcome."""

    diverged: Estimate
    flipped: Estimate


def fork_rates(worlds: Mapping[str, World], base: str, arm: str, *, fraction: float, n: int, seed: int) -> ForkRates:
    """`n` bases a task with one branch of `arm` each, forked at `fraction` of the base's length.

    Diverged: a command differs at a place that both have (length alone does not count).
    """
    diverged, flipped = [], []
    for name, world in worlds.items():
        for number in range(n):
            whole = world.roll(base, seed_for(seed, name, "base", number))
            step = max(1, round(fraction * len(whole.steps)))
            branch = world.roll(arm, seed_for(seed, name, arm, number), start_at(whole.steps, step))
            pairs = zip(commands(whole.steps[step - 1 :]), branch.commands, strict=False)
            diverged.append(float(any(one != other for one, other in pairs)))
            flipped.append(float(branch.resolved != whole.resolved))
    return ForkRates(mean(diverged), mean(flipped))


def start_at(steps: Sequence[Step], step: int) -> Start:
    """Where a branch starts that decides `step` again, with the budget that the steps before it have spent."""
    history, spent = tuple(steps[: step - 1]), NOTHING_YET.spent
    for one in history:
        spent = spend(spent, one)
    return Start(history, spent)
