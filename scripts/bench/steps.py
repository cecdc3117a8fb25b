"""Processor time of the harness per step, with every step on disk before the next call, against mini-swe-agent's.

Both run `true` in a local shell with a model that answers at once. Model client, sandbox driver and state digest are
timed apart and left out on both sides; what is left is the loop, the prompts and the saving. mini saves its whole
trajectory at every step (its `output_path`); forkroll appends a line a step and the whole record at the end.
"""

import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from meter import Meter, MeteredClient, MeteredProvider

from harness.agent import ModelAgent
from harness.config import LimitsSection
from harness.journal import Journal, RunFolder
from harness.loop import rollout
from harness.model.protocol import Completion, Message, Said, Sampling, Scored
from harness.prompting import OwnScaffold
from harness.record import Ending, Outcome, Provenance, Task, ToolCall, Trajectory, Usage
from harness.routing import Always
from harness.sandbox.local import LocalProvider
from harness.sandbox.protocol import SandboxLimits
from harness.tasks.pocket import Pocket

WINDOW = 50
NOTE = "A note of ordinary length about what the next command is for."
RUNS = 3


@dataclass
class Curve:
    """Seconds of harness time by the end of each step."""

    at: list[float]

    def around(self, step: int) -> float:
        """Milliseconds a step in the window that ends at `step` (or the first window)."""
        last = max(step, WINDOW)
        return (self.at[last - 1] - self.at[last - WINDOW]) / (WINDOW - 1) * 1e3


class Instant:
    """Answers `true` at once, whatever the conversation."""

    def complete(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]], sampling: Sampling, seed: int
    ) -> Completion:
        call = ToolCall(id="call", name="bash", arguments='{"command": "true"}')
        return Completion(
            text=NOTE,
            tool_calls=(call,),
            finish_reason="tool_calls",
            usage=Usage(input_tokens=1000, output_tokens=20),
            model="instant",
        )

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        return Scored(None, None, None, "not asked for here")


def forkroll_curve(work: Path, steps: int) -> tuple[Curve, Meter, float]:
    """The curve, the meter, and the seconds that the whole record took at the end."""
    meter = Meter()
    tasks = Pocket(work / "cache")
    task = tasks.tasks()[0]
    local = LocalProvider(limits=SandboxLimits(), scratch=work / "scratch")
    at: list[float] = []
    with MeteredProvider(local, meter).start(tasks.image(task)) as sandbox, Journal(RunFolder(work / "run")) as journal:
        agents = {"a": ModelAgent(MeteredClient(Instant(), meter), OwnScaffold("tool_call"), Sampling())}
        skipped = meter.total()
        start = time.thread_time()
        with journal.steps_of("bench") as log:

            def on_step(step: Any) -> None:
                log(step)
                at.append(time.thread_time() - start - (meter.total() - skipped))

            limits = LimitsSection(calls=steps)
            done = rollout(task, Always("a"), agents, sandbox, limits=limits, seed=1, on_step=on_step)
        closing = time.thread_time()
        journal.append(_record(task, done))
        closing = time.thread_time() - closing
    local.close()
    return Curve(at), meter, closing


def _record(task: Task, done: Any) -> Trajectory:
    ending = Ending(spent=done.spent, stop=done.stop, patch=b"", outcome=Outcome(status="unscored"))
    return Trajectory(
        id="bench",
        task_id=task.instance_id,
        agent="a",
        seed=1,
        sandbox="local",
        start_digest=None,
        steps=done.steps,
        ending=ending,
        provenance=Provenance(),
    )


def mini_curve(work: Path, steps: int) -> Curve:
    import minisweagent
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.test_models import DeterministicModel, make_output

    config = yaml.safe_load((Path(minisweagent.__file__).parent / "config/benchmarks/swebench.yaml").read_text())
    apart = {"seconds": 0.0}

    def timed(call: Callable[[], Any]) -> Any:
        start = time.thread_time()
        try:
            return call()
        finally:
            apart["seconds"] += time.thread_time() - start

    class Environment(LocalEnvironment):
        def execute(self, action: dict[str, Any], *more: Any, **named: Any) -> dict[str, Any]:
            return timed(lambda: super(Environment, self).execute(action, *more, **named))

    class Model(DeterministicModel):
        """One scripted output for ever: the shipped class dumps all its outputs at every step."""

        def query(self, messages: list[dict[str, Any]], **named: Any) -> dict[str, Any]:
            return timed(lambda: copy.deepcopy(self.config.outputs[0]))

    at: list[float] = []
    start = time.thread_time()

    class Agent(DefaultAgent):
        def save(self, path: Path | None, *more: Any) -> Any:
            saved = super().save(path, *more)
            at.append(time.thread_time() - start - apart["seconds"])
            return saved

    agent = Agent(
        Model(
            outputs=[make_output(NOTE, [{"command": "true"}])],
            observation_template=config["model"]["observation_template"],
        ),
        Environment(cwd=str(work)),
        system_template=config["agent"]["system_template"],
        instance_template=config["agent"]["instance_template"],
        step_limit=steps,
        cost_limit=0,
        output_path=work / "mini.traj.json",
    )
    agent.run("It breaks.")
    return Curve(at)


def main() -> None:
    table: dict[str, dict[int, list[float]]] = {"forkroll": {}, "mini": {}}
    for _ in range(RUNS):  # alternating, so that both meet the same neighbours
        with tempfile.TemporaryDirectory() as folder:
            ours, meter, closing = forkroll_curve(Path(folder), 1000)
            theirs = mini_curve(Path(folder), 300)
        for step in (50, 100, 300, 1000):
            table["forkroll"].setdefault(step, []).append(ours.around(step))
        for step in (50, 100, 300):
            table["mini"].setdefault(step, []).append(theirs.around(step))
    medians = {name: {step: statistics.median(v) for step, v in row.items()} for name, row in table.items()}
    print(f"harness processor time per step, ms, each step saved; windows of {WINDOW} steps, median of {RUNS} runs")
    print("  step                    50     100     300    1000")
    for name, row in medians.items():
        print(f"  {name:<18}" + "".join(f"{row[s]:>8.3f}" if s in row else "       -" for s in (50, 100, 300, 1000)))
    ratios = [medians["mini"][step] / medians["forkroll"][step] for step in (50, 100, 300)]
    print("  ratio mini/forkroll " + "".join(f"{ratio:>6.1f}  " for ratio in ratios))
    print(f"  flat: step 1000 / step 50 = {medians['forkroll'][1000] / medians['forkroll'][50]:.2f}")
    each = {name: meter.seconds[name] / meter.count[name] * 1e3 for name in meter.seconds if name != "sandbox start"}
    print("  apart, ms a step:", json.dumps({name: round(value, 3) for name, value in each.items()}))
    print(f"  the whole record of 1000 steps at the end: {closing * 1e3:.1f} ms = {closing:.4f} ms a step")


if __name__ == "__main__":
    sys.exit(main())
