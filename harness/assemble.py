"""Turns the names in a study into parts: task set, sandbox provider, model servers, clients.

Everything heavy is imported where it is used. What had to be degraded is a line that the caller prints and records.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.agent import Agent, ModelAgent
from harness.branch import Stage
from harness.bundled import cache_folder
from harness.clients import cards_of
from harness.config import OpenAIModel, RecordedModel, ScriptedModel, SimulatedModel, Study
from harness.errors import ConfigError
from harness.importers.continuing import logged_scaffold
from harness.model.protocol import ModelClient, Sampling
from harness.prompting import OwnScaffold
from harness.record import Task
from harness.sandbox.protocol import SandboxLimits, SandboxProvider
from harness.scaffold.protocol import Scaffold
from harness.tasks.protocol import TaskSet

if TYPE_CHECKING:
    from harness.sandbox.live import LiveProvider

TASK_SETS = ("pocket",)
TREES_OF_THEIR_OWN = ("pocket",)
"""Sets whose tasks are trees on this machine: in Docker these are put into the base image."""


def open_tasks(name: str) -> TaskSet:
    """The task set of that name."""
    if name not in TASK_SETS:
        raise ConfigError(f"unknown task set {name!r}; known: {', '.join(TASK_SETS)}")
    from harness.tasks.pocket import Pocket

    return Pocket(cache_folder())


def select_tasks(study: Study, tasks: TaskSet) -> list[Task]:
    """The study's tasks, in the set's order; an unknown id or an empty selection is an error."""
    known = {task.instance_id: task for task in tasks.tasks()}
    ids = known if study.tasks.ids is None else study.tasks.ids
    unknown = [task_id for task_id in ids if task_id not in known]
    if unknown:
        raise ConfigError(
            f"task set {tasks.name!r} has no task {unknown[0]!r}; first of its own: {next(iter(known), '-')}"
        )
    chosen = [known[task_id] for task_id in ids][: study.tasks.count]
    if not chosen:
        raise ConfigError("no tasks: `tasks.ids` is empty; leave it out to take the whole set")
    return chosen


@dataclass(frozen=True)
class OpenProvider:
    """A sandbox provider and what is less than asked for."""

    provider: "LiveProvider"
    degraded: tuple[str, ...]


@contextmanager
def open_provider(study: Study, scratch: Path, *, allow_unsandboxed: bool) -> Iterator[OpenProvider]:
    """The study's sandbox provider, closed at the end; `auto` takes namespaces where the kernel allows them."""
    if study.sandbox.provider == "docker":
        opened = _open_docker(study, scratch)
    else:
        opened = _open_here(study, scratch, allow_unsandboxed)
    with closing(opened.provider):
        yield opened


def _open_docker(study: Study, scratch: Path) -> OpenProvider:
    from harness.sandbox.docker import DockerOptions, DockerProvider
    from harness.sandbox.images import BASE_IMAGE

    asked = study.sandbox
    options = DockerOptions(
        base=asked.image or BASE_IMAGE,
        user=asked.user,
        network=asked.network,
        cpus=asked.cpus,
        pull_seconds=asked.pull_seconds,
        pool=asked.pool,
        run=str(scratch.absolute().parent),
        say=lambda text: print(text, file=sys.stderr),
    )
    provider = DockerProvider(limits=_limits(study), scratch=scratch, options=options)
    try:
        if study.tasks.set in TREES_OF_THEIR_OWN:
            provider.require_base()
    except BaseException:
        provider.close()
        raise
    return OpenProvider(provider, provider.degraded)


def _open_here(study: Study, scratch: Path, allow_unsandboxed: bool) -> OpenProvider:
    """Namespaces, or `local` where it is asked for or all that there is."""
    from harness.sandbox.local import LocalProvider
    from harness.sandbox.namespace import NamespaceProvider, available

    wanted = study.sandbox.provider
    why_not = "" if wanted == "local" else available() or ""
    if wanted == "namespace" and why_not:
        raise ConfigError(f"sandbox `namespace` does not work here: {why_not}")
    limits = _limits(study)
    if wanted != "local" and not why_not:
        isolated = NamespaceProvider(limits=limits, scratch=scratch)
        return OpenProvider(isolated, tuple(isolated.degraded))
    _refuse_unsandboxed(study, allow_unsandboxed)
    notes = (f"sandbox is `local` (not isolated): {why_not}",) if why_not else ("sandbox is `local`: not isolated",)
    return OpenProvider(LocalProvider(limits=limits, scratch=scratch), notes)


@contextmanager
def image_finder(study: Study) -> Iterator[Callable[[str], bool] | None]:
    """Tells whether the engine has an image; None where the study needs no engine or none answers."""
    if study.sandbox.provider != "docker":
        yield None
        return
    from harness.sandbox.engine import Engine

    try:
        engine = Engine()
    except ConfigError:
        yield None
        return
    with closing(engine):
        yield lambda reference: engine.image(reference) is not None


def _limits(study: Study) -> SandboxLimits:
    asked = study.sandbox
    return SandboxLimits(asked.output_bytes, asked.disk_bytes, asked.memory_bytes, asked.processes)


def _refuse_unsandboxed(study: Study, allowed: bool) -> None:
    cards = cards_of(study)
    real = [
        name
        for name, model in study.models.items()
        if isinstance(model, OpenAIModel | RecordedModel) or (name in cards and cards[name].server != "simulated")
    ]
    if real and not allowed:
        raise ConfigError(
            f"model {real[0]!r} would run commands of its own choice on this machine without a sandbox; "
            "run `forkroll doctor` to see what namespaces need, or pass --allow-unsandboxed"
        )


def open_scaffold(study: Study) -> Scaffold:
    """The study's scaffold."""
    if study.scaffold.name == "forkroll":
        return OwnScaffold(study.dialect)
    from harness.scaffold.mini import MiniScaffold

    _refuse_models_of_ours(study)
    scaffold = MiniScaffold.named(study.scaffold.config, study.dialect)
    scaffold.require_kept(study.sandbox.output_bytes)
    return scaffold


def _refuse_models_of_ours(study: Study) -> None:
    """Simulated models, and scripted ones in the text dialect, write what only our own scaffold reads."""
    for name, model in study.models.items():
        if isinstance(model, SimulatedModel) or (isinstance(model, ScriptedModel) and study.dialect == "text"):
            raise ConfigError(
                f"model {name!r} ({model.client}) speaks to `scaffold: forkroll` only in `dialect: {study.dialect}`"
            )


def scaffold_notes(study: Study) -> list[str]:
    """Where the study departs from its scaffold's configuration, a line each."""
    if study.scaffold.name == "forkroll":
        return []
    from harness.scaffold.mini import MiniScaffold

    return MiniScaffold.named(study.scaffold.config, study.dialect).notes(study.limits)


def sampling_of(study: Study) -> Sampling:
    """How the study draws completions."""
    wanted = study.sampling
    return Sampling(wanted.temperature, wanted.max_tokens, wanted.logprobs)


def agents_maker(study: Study, clients: Mapping[str, ModelClient]) -> Callable[[Scaffold], Mapping[str, Agent]]:
    """Makes fresh agents for one rollout in a scaffold."""
    sampling = sampling_of(study)
    return lambda scaffold: {name: ModelAgent(client, scaffold, sampling) for name, client in clients.items()}


def stage_of(study: Study, tasks: TaskSet, provider: SandboxProvider, clients: Mapping[str, ModelClient]) -> Stage:
    """What every cell of the run works with."""
    scaffold, agents = open_scaffold(study), agents_maker(study, clients)
    return Stage(
        study,
        tasks,
        provider,
        partial(agents, scaffold),
        environment=scaffold.environment,
        logged=cache(logged_scaffold),
        agents_in=agents,
    )
