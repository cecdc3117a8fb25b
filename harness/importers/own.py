"""Bases of another run of ours: they keep their state digests, and go on in the scaffold of the run they came from.

Its messages are taken along verbatim, so that a study with other prompts changes nothing about them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.assemble import open_scaffold, open_tasks, select_tasks
from harness.config import Study, load_study
from harness.errors import UsageError
from harness.exporters.statuses import status_of
from harness.importers.continuing import spoken_as
from harness.importers.protocol import Imported, Refused
from harness.journal import RunFolder
from harness.record import Source, Step, Task, Trajectory, digest
from harness.scaffold.protocol import Scaffold

FORMAT = "forkroll"


def read_runs(paths: Sequence[Path], agent: str, model: str | None) -> Iterator[Imported | Refused]:
    """The bases in run folders as bases of `agent`: those of `model`, where one is given."""
    for path in paths:
        try:
            folder = RunFolder(path).require()
            study = load_study(str(folder.study_file))
            records, tasks = folder.records(), select_tasks(study, open_tasks(study))
        except UsageError as error:
            yield Refused(str(path), "", str(error))
            continue
        known = {task.instance_id: task for task in tasks}
        for base in records.bases.values():
            if model is None or base.agent == model:
                yield _imported(base, known[base.task_id], study, path.name, agent)


def _imported(base: Trajectory, task: Task, study: Study, name: str, agent: str) -> Imported:
    scaffold = open_scaffold(study)
    opening = tuple(dict(message) for message in scaffold.opening(task)) if base.opening is None else base.opening
    taken = base.model_copy(
        update={
            "id": f"{base.task_id}:{agent}",
            "agent": agent,
            "opening": opening,
            "steps": tuple(_verbatim(step, scaffold, agent) for step in base.steps),
            "source": _source(base, study, scaffold, name) if base.source is None else base.source,
        }
    )
    return Imported(taken, base.agent)


def _verbatim(step: Step, scaffold: Scaffold, agent: str) -> Step:
    messages = step.messages
    if messages is None:
        messages = tuple(dict(message) for message in scaffold.step_messages(step))
    circumstances = step.circumstances.model_copy(update={"snapshot": None})  # it is in the other run's folder
    return step.model_copy(update={"agent": agent, "messages": messages, "circumstances": circumstances})


def _source(base: Trajectory, study: Study, scaffold: Scaffold, name: str) -> Source:
    return Source(
        format=FORMAT,
        name=f"{name}: {base.id}",
        run=study.name,
        sha256=digest([base]),
        exit_status=status_of(base.ending.stop),
        config=json.dumps(spoken_as(scaffold)),
        rest="0",
    )
