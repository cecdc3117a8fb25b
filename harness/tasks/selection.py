"""Which of a set's tasks a study takes, in which order. Pure: same tasks and section, same list.

The order of operations is part of the result: filters, shuffle, slice, count; with `shuffle_first` the shuffle
comes before the filters. A shuffle sorts by id first, so that the order of a file does not enter.
"""

import random
import re
from collections.abc import Iterable, Sequence

from harness.config import TasksSection
from harness.errors import ConfigError
from harness.record import Task


def select(tasks: Sequence[Task], wanted: TasksSection) -> list[Task]:
    """The wanted tasks, with what is to be appended; a name that is not there or an empty result is a ConfigError."""
    chosen = list(tasks)
    if wanted.shuffle is not None and wanted.shuffle_first:
        chosen = shuffled(chosen, wanted.shuffle)
    chosen = _filtered(chosen, wanted)
    if wanted.shuffle is not None and not wanted.shuffle_first:
        chosen = shuffled(chosen, wanted.shuffle)
    chosen = chosen[_slice(wanted.slice)][: wanted.count]
    if not chosen:
        raise ConfigError("no tasks: filters and slice under `tasks` leave none; loosen one of them")
    return [_with(task, wanted.append) for task in chosen]


def shuffled(tasks: Iterable[Task], seed: int) -> list[Task]:
    """`tasks` sorted by id, then shuffled by Python's generator with `seed`."""
    ordered = sorted(tasks, key=lambda task: task.instance_id)
    random.Random(seed).shuffle(ordered)
    return ordered


def _filtered(tasks: Sequence[Task], wanted: TasksSection) -> list[Task]:
    chosen = list(tasks) if wanted.ids is None else _named(tasks, wanted)
    if wanted.repos is not None:
        _known("tasks.repos", wanted.repos, {task.repo for task in tasks})
        chosen = [task for task in chosen if task.repo in wanted.repos]
    if wanted.difficulty is not None:
        _known("tasks.difficulty", wanted.difficulty, {task.difficulty for task in tasks if task.difficulty})
        chosen = [task for task in chosen if task.difficulty in wanted.difficulty]
    if wanted.match is not None:
        pattern = _pattern(wanted.match)
        chosen = [task for task in chosen if pattern.match(task.instance_id)]
    return chosen


def _named(tasks: Sequence[Task], wanted: TasksSection) -> list[Task]:
    known, ids = {task.instance_id: task for task in tasks}, wanted.ids or ()
    unknown = [task_id for task_id in ids if task_id not in known]
    if unknown:
        first = next(iter(known), "-")
        raise ConfigError(f"task set {wanted.set!r} has no task {unknown[0]!r}; first of its own: {first}")
    twice = [task_id for task_id in ids if ids.count(task_id) > 1]
    if twice:
        raise ConfigError(f"`tasks.ids` names {twice[0]!r} twice; once is enough")
    if wanted.shuffle is not None and wanted.shuffle_first:
        return [task for task in tasks if task.instance_id in ids]
    return [known[task_id] for task_id in ids]


def _known(key: str, values: Sequence[str], there: set[str]) -> None:
    for value in values:
        if value not in there:
            raise ConfigError(f"`{key}`: no task has {value!r}; there are: {', '.join(sorted(there)) or 'none'}")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"`tasks.match`: {text!r} is no regular expression: {error}") from None


def _slice(text: str | None) -> slice:
    parts = [int(part) if part else None for part in (text or ":").split(":")]
    return slice(*parts)


def _with(task: Task, text: str | None) -> Task:
    if text is None:
        return task
    return task.model_copy(update={"problem_statement": f"{task.problem_statement}\n\n{text}"})
