"""`forkroll export`: a run in the formats of others.

An arm is what gets one name: `base-AGENT`, or `DIRECTION-ARM-DEPTH-REPLICATE` with a depth such as 30pct, so that no
task is in an arm twice. A fork that two depths share is in the predictions of both.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.assemble import scaffold_of
from harness.errors import UsageError
from harness.exporters.mini import FORMAT_1_1, Rollout, mini_document, restored_document
from harness.importers.continuing import OURS, spoken_as
from harness.importers.mini import FORMATS
from harness.journal import RunFolder, write_whole
from harness.record import Branch, Step, Task, Trajectory
from harness.run import OpenRun, open_run
from harness.scaffold.protocol import Scaffold
from harness.score import what_is_graded

Message = Mapping[str, Any]


def export_run(folder: Path, into: Path | None, form: str) -> list[str]:
    """Write the export and say where. UsageError where it cannot be."""
    if form not in _FORMS:
        raise UsageError(f"--format is one of {', '.join(_FORMS)}, not {form!r}")
    if form == "canonical":
        if into is not None:
            raise UsageError("the canonical export goes into the run folder: leave DIR out, or choose another --format")
        return [str(RunFolder(folder).require().export())]
    if into is None:
        raise UsageError(f"--format {form} needs a folder to write to: forkroll export RUN DIR --format {form}")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UsageError(f"{into}: exists and is not an empty folder; name a new one")
    return _FORMS[form](open_run(folder), into)


def _write_trajectories(opened: OpenRun, into: Path) -> list[str]:
    """One traj.json a rollout, in mini-swe-agent's layout within a folder an arm."""
    teller = _Teller(opened)
    written = 0
    for record in _finished(opened):
        path = into / _arms(record)[0] / record.task_id / f"{record.task_id}.traj.json"
        write_whole(path, json.dumps(teller.document(record), indent=2))
        written += 1
    return [f"{written} trajectories in {into}", *_owed_lines(opened)]


def _write_predictions(opened: OpenRun, into: Path) -> list[str]:
    """One preds.json an arm: a JSON object by instance, as SWE-bench's grading reads it. The patch is what the run
    graded: the submission or the working tree."""
    run = opened.folder.path.resolve().name
    arms: dict[str, dict[str, Any]] = defaultdict(dict)
    garbled = []
    for record in _finished(opened):
        graded = what_is_graded(record.ending.graded, record.ending.submission, record.ending.patch) or b""
        patch = graded.decode("utf-8", "replace")
        if patch.encode("utf-8") != graded:
            garbled.append(record.id)
        for arm in _arms(record)[1:]:
            arms[arm][record.task_id] = {
                "model_name_or_path": f"{run}/{arm}",
                "instance_id": record.task_id,
                "model_patch": patch,
            }
    for arm, predictions in arms.items():
        write_whole(into / arm / "preds.json", json.dumps(predictions, indent=2, sort_keys=True))
    lines = [f"{into / arm / 'preds.json'}: {len(predictions)} predictions" for arm, predictions in arms.items()]
    lines += [f"note: the patch of {name} is not UTF-8; U+FFFD stands for what is not" for name in garbled]
    return lines + _owed_lines(opened)


def _owed_lines(opened: OpenRun) -> list[str]:
    return [f"note: {len(opened.owed)} cells of the run have no record and are in no export"] if opened.owed else []


def _finished(opened: OpenRun) -> Iterator[Trajectory | Branch]:
    records = opened.records
    for cell_id in sorted(records.finished()):
        yield opened.record(cell_id)


def _arms(record: Trajectory | Branch) -> list[str]:
    """The arm's name with all its depths, then once with each."""
    if isinstance(record, Trajectory):
        return [f"base-{record.agent}"] * 2
    depths = [record.fork.depth, *record.fork.depth.split("+")]
    return [f"{record.direction}-{record.arm.name}-{_slug(depth)}-{record.replicate}" for depth in depths]


def _slug(depth: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+]", "", depth.replace("%", "pct"))


_FORMS: dict[str, Callable[[OpenRun, Path], list[str]]] = {
    "canonical": lambda opened, into: [],
    "traj": _write_trajectories,
    "preds": _write_predictions,
}


class _Teller:
    """Tells rollouts of one run in mini-swe-agent's format."""

    def __init__(self, opened: OpenRun) -> None:
        self._opened = opened
        self._tasks: dict[str, Task] = {task.instance_id: task for task in opened.tasks}

    def document(self, record: Trajectory | Branch) -> dict[str, Any]:
        """`record` as the content of a traj.json."""
        base = record if isinstance(record, Trajectory) else self._opened.records.bases[record.fork.base_id]
        source = base.source if base.source is not None and base.source.format in FORMATS else None
        if source is not None and isinstance(record, Trajectory):
            return restored_document(base, source)
        scaffold = scaffold_of(self._opened.study, base)
        prefix = base.steps[: record.fork.step - 1] if isinstance(record, Branch) else ()
        opening = base.opening if base.opening is not None else scaffold.opening(self._tasks[base.task_id])
        document = mini_document(
            Rollout(
                task_id=record.task_id,
                opening=opening,
                steps=(*prefix, *record.steps),
                messages_of=lambda step: _messages(step, scaffold),
                ending=record.ending,
                format=FORMAT_1_1 if source is None else source.format,
                config=self._config(record, base, scaffold),
                exit_status=base.source.exit_status if base.source is not None and base is record else None,
            )
        )
        if source is not None:  # of the messages before the fork, what the record has no place for
            before = len(opening) + sum(len(step.messages or ()) for step in prefix)
            document["messages"][:before] = restored_document(base, source)["messages"][:before]
        return document

    def _config(self, record: Trajectory | Branch, base: Trajectory, scaffold: Scaffold) -> dict[str, Any]:
        """The settings of the log that a branch goes on in; else how our scaffold spoke."""
        study = self._opened.study
        agent = record.agent if isinstance(record, Trajectory) else record.arm.agent
        ours = {"run": study.name, "cell": record.id, "agent": agent}
        logged = json.loads(base.source.config) if base.source is not None else None
        if isinstance(logged, dict) and OURS not in logged:
            return {**logged, OURS: ours}
        spoken = spoken_as(scaffold)
        limits = {"step_limit": study.limits.calls or 0, "cost_limit": 0.0}
        return {
            **spoken,
            "agent": {**spoken.get("agent", {}), **limits},
            "model": {**spoken.get("model", {}), "model_name": agent},
            OURS: {**ours, **spoken[OURS]},
        }


def _messages(step: Step, scaffold: Scaffold) -> Sequence[Message]:
    return scaffold.step_messages(step) if step.messages is None else step.messages
