"""Going back to a recorded run: a shell in a sandbox brought to a point, and one cell run again before one's eyes.

Nothing here writes to the run folder's records.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from harness.assemble import open_provider, open_scaffold, open_tasks, scaffold_of, stage_of
from harness.branch import BaseCell, BranchCell, Stage, with_environment
from harness.clients import open_models
from harness.errors import UsageError
from harness.fork import re_execute, start_of
from harness.journal import Records
from harness.loop import NOTHING_YET, Continuation, rollout
from harness.preflight import check_models
from harness.record import Branch, Step, Task, Trajectory
from harness.routing import Always, policy_for
from harness.run import OpenRun, open_run
from harness.sandbox.protocol import Sandbox
from harness.score import score, what_is_graded
from harness.show import fidelity, printable, step_line
from harness.sweep import plan_bases, plan_branches

Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """A point of a recorded rollout: the state before step `step`."""

    record: Trajectory | Branch
    path: Trajectory
    """The whole list of steps, the prefix of a branch included, as one trajectory."""
    step: int


def find_place(name: str, records: Records) -> Place:
    """`ID@k` (before step k) or `ID` (after the last step)."""
    cell_id, at, number = name.rpartition("@")
    if not (at and number.isdigit() and _known(cell_id, records)):
        cell_id, number = name, ""
    if not _known(cell_id, records):
        raise UsageError(f"no record {cell_id!r} in this run; `forkroll show RUN` lists them")
    record, path = _whole(cell_id, records)
    end = len(path.steps) + 1
    step = int(number) if number else end
    if not 1 <= step <= end:
        raise UsageError(f"{cell_id} has steps 1 to {end - 1}; {cell_id}@{end} is its end, not @{step}")
    return Place(record, path, step)


def _known(cell_id: str, records: Records) -> bool:
    return cell_id in records.bases or cell_id in records.branches


def _whole(cell_id: str, records: Records) -> tuple[Trajectory | Branch, Trajectory]:
    if cell_id in records.bases:
        return records.bases[cell_id], records.bases[cell_id]
    branch = records.branches[cell_id]
    base = records.bases[branch.fork.base_id]
    steps = base.steps[: branch.fork.step - 1] + branch.steps
    return branch, base.model_copy(update={"steps": steps})


def shell(folder: Path, name: str, *, allow_unsandboxed: bool, say: Say) -> int:
    """A shell in a sandbox brought to the point that `name` says; its exit code."""
    opened = open_run(folder)
    place = find_place(name, opened.records)
    tasks = open_tasks(opened.study)
    task = _task(place.record.task_id, opened)
    image = with_environment(tasks.image(task), scaffold_of(opened.study, place.path).environment)
    scratch = folder.absolute() / "sandboxes"
    with (
        open_provider(opened.study, scratch, allow_unsandboxed=allow_unsandboxed) as sandboxes,
        sandboxes.provider.start(image) as sandbox,
    ):
        check = re_execute(place.path, place.step, sandbox, opened.study.limits.action_seconds)
        say(f"{place.record.id} before step {place.step} · {fidelity(check)} · `exit` removes this sandbox")
        return enter(sandbox)


def enter(sandbox: Sandbox) -> int:
    """An interactive bash inside, on this terminal; its exit code."""
    sys.stdout.flush()
    return subprocess.call(sandbox.shell_argv())


def _task(task_id: str, opened: OpenRun) -> Task:
    return next(task for task in opened.tasks if task.instance_id == task_id)


def rerun(folder: Path, cell_id: str, *, keep_sandbox: bool, allow_unsandboxed: bool, say: Say) -> int:
    """Run one cell again with its own seed, each step printed as it comes, and compare with the record.

    Returns 0 when steps and outcome equal the record (or there is none yet), 1 when they differ.
    """
    opened = open_run(folder)
    if cell_id in opened.records.bases and opened.records.bases[cell_id].source is not None:
        raise UsageError(f"{cell_id} was imported; it was never run here. Its branches can be run again")
    cell = _cell(cell_id, opened)
    tasks = open_tasks(opened.study)
    scratch = folder.absolute() / "sandboxes"
    with (
        closing(tasks),
        open_provider(opened.study, scratch, allow_unsandboxed=allow_unsandboxed) as sandboxes,
        open_models(opened.study) as models,
    ):
        agent = cell.arm.agent if isinstance(cell, BranchCell) else cell.agent
        asked = {name: one for name, one in models.spoken.items() if name == agent}
        for note in (*models.notes(), *check_models(opened.study, [cell.task], open_scaffold(opened.study), asked)):
            say(f"note: {note}")
        stage = stage_of(opened.study, tasks, sandboxes.provider, models.clients, grading=sandboxes.grading)
        stage = stage.for_base(cell.base) if isinstance(cell, BranchCell) else stage
        with stage.provider.start(stage.image(cell.task)) as sandbox:
            done = _roll(cell, stage, sandbox, say)
            patch = sandbox.working_diff(cell.task.base_commit)
            if keep_sandbox:
                say("the sandbox is kept until this shell ends")
                enter(sandbox)
        graded = what_is_graded(opened.study.grading.of, done.submission, patch)
        outcome = score(cell.task, graded, tasks, stage.grading_provider or stage.provider)
    say(f"{done.stop.value}, {outcome.status}" + (f" ({printable(outcome.detail)})" if outcome.detail else ""))
    return _compare(cell_id, opened, done.steps, outcome.status, say)


def _cell(cell_id: str, opened: OpenRun) -> BaseCell | BranchCell:
    cells: list[BaseCell | BranchCell] = [
        *plan_bases(opened.study, opened.tasks),
        *plan_branches(opened.study, opened.tasks, opened.records.bases),
    ]
    found = next((cell for cell in cells if cell.id == cell_id), None)
    if found is None:
        raise UsageError(f"no cell {cell_id!r} in this run's plan; `forkroll show RUN` lists its bases")
    return found


def _roll(cell: BaseCell | BranchCell, stage: Stage, sandbox: Sandbox, say: Say) -> Continuation:
    study = stage.study
    start = NOTHING_YET
    if isinstance(cell, BranchCell):
        start = start_of(cell.fork, cell.base, study.budget)
        say(fidelity(re_execute(cell.base, cell.fork.step, sandbox, study.limits.action_seconds)))
    policy = policy_for(cell.arm) if isinstance(cell, BranchCell) else Always(cell.agent)
    return rollout(
        cell.task, policy, stage.new_agents(), sandbox,
        limits=study.limits, seed=cell.seed, start=start, on_step=lambda step: say(step_line(step)),
    )  # fmt: skip


def _compare(cell_id: str, opened: OpenRun, steps: Sequence[Step], status: str, say: Say) -> int:
    records = opened.records
    if not _known(cell_id, records):
        say("no record to compare with")
        return 0
    record = opened.record(cell_id)
    before = [(step.reply.text, step.reply.actions, step.state_digest) for step in record.steps]
    now = [(step.reply.text, step.reply.actions, step.state_digest) for step in steps]
    if before == now and record.ending.outcome.status == status:
        say(f"equal to the record: {len(now)} steps, {status}")
        return 0
    same = next(
        (n for n, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), min(len(before), len(now))
    )
    say(f"differs from the record after {same} equal steps: {len(before)} steps, {record.ending.outcome.status} then")
    return 1
