"""Before a sweep: do the study's servers repeat themselves? Prompts are the study's own, or its task set's.

What is asked is what a rollout asks first: the scaffold's opening for a task, with its tools, at the study's
temperature.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from harness.config import DeterminismSection
from harness.model.protocol import Message
from harness.record import Task
from harness.scaffold.protocol import Scaffold
from harness.serving.asking import Asking
from harness.serving.selftest import SelfTest, self_test


def openings(scaffold: Scaffold, tasks: Iterable[Task], count: int) -> dict[str, list[Message]]:
    """Instance id -> first messages, for the first `count` tasks, repeated ones left out."""
    distinct = {task.instance_id: task for task in tasks}
    return {name: list(scaffold.opening(task)) for name, task in islice(distinct.items(), count)}


def test_servers(
    servers: Mapping[str, Asking],
    scaffold: Scaffold,
    own: Sequence[Task],
    others: Sequence[Task],
    wanted: DeterminismSection,
    *,
    temperature: float,
) -> dict[str, SelfTest]:
    """Study's name of a model -> self-test, one for models that are one served model asked in one way."""
    prompts = openings(scaffold, chain(own, others), wanted.prompts)
    done: dict[str, SelfTest] = {}
    for asking in servers.values():
        if _what(asking) not in done:
            done[_what(asking)] = self_test(_as_in_a_rollout(asking, scaffold, wanted, temperature), prompts)
    return {name: done[_what(asking)] for name, asking in servers.items()}


def _what(asking: Asking) -> str:
    return repr((asking.base_url, asking.model, asking.form))


def _as_in_a_rollout(asking: Asking, scaffold: Scaffold, wanted: DeterminismSection, temperature: float) -> Asking:
    return replace(asking, tools=tuple(scaffold.tools()), temperature=temperature, max_tokens=wanted.tokens)
