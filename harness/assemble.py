"""Turns the names in a study into parts: task set, sandbox provider, model servers, clients.

Everything heavy is imported where it is used. What had to be degraded is a line that the caller prints and records.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.agent import Agent, ModelAgent
from harness.branch import Stage
from harness.bundled import cache_folder
from harness.clients import cards_of
from harness.config import (
    GradingSection,
    OpenAIModel,
    RecordedModel,
    ScriptedModel,
    SimulatedModel,
    Study,
    TasksSection,
    load_study,
    load_tasks_section,
)
from harness.errors import ConfigError
from harness.importers.continuing import logged_scaffold
from harness.model.protocol import ModelClient, Sampling
from harness.prompting import OwnScaffold
from harness.record import Task, Trajectory
from harness.sandbox.protocol import SandboxLimits, SandboxProvider
from harness.scaffold.protocol import Dialect, Scaffold
from harness.tasks import selection
from harness.tasks.protocol import TaskSet
from harness.tasks.rows import ALIASES, is_table

if TYPE_CHECKING:
    from harness.sandbox.live import LiveProvider

TASK_SETS = ("pocket", "swebench")
GRADING_DISK_BYTES = 8 * 1024**3
TREES_OF_THEIR_OWN = ("pocket",)
"""Sets whose tasks are trees on this machine: in Docker these are put into the base image."""


def open_tasks(study: Study) -> TaskSet:
    """The study's task set; the caller closes it."""
    return _open_set(study.tasks, study.grading)


def _open_set(wanted: TasksSection, grading: GradingSection) -> TaskSet:
    if wanted.set not in TASK_SETS:
        raise ConfigError(f"unknown task set {wanted.set!r}; known: {', '.join(TASK_SETS)}")
    if wanted.set == "swebench":
        from harness.tasks.swebench import SweBench

        assert wanted.source is not None, "checked when the section was read"
        return SweBench(wanted.source, wanted.split, seconds=grading.seconds)
    from harness.tasks.pocket import Pocket

    return Pocket(cache_folder())


def tasks_named(name: str, overrides: Sequence[str]) -> tuple[str, list[Task]]:
    """What a person calls tasks, and the tasks: those of a study, of the bundled set, or of a table or data set."""
    if name == "pocket":
        wanted = load_tasks_section({"set": name}, overrides)
    elif name in ALIASES or is_table(name):
        wanted = load_tasks_section({"set": "swebench", "source": name}, overrides)
    else:
        study = load_study(name, overrides)
        return study.name, select_tasks(study, open_tasks(study))
    return Path(name).name, selection.select(_open_set(wanted, GradingSection()).tasks(), wanted)


def select_tasks(study: Study, tasks: TaskSet) -> list[Task]:
    """The study's tasks, in its order; an unknown name or an empty selection is an error."""
    return selection.select(tasks.tasks(), study.tasks)


@dataclass(frozen=True)
class OpenProvider:
    """Sandbox providers and what is less than asked for."""

    provider: "LiveProvider"
    degraded: tuple[str, ...]
    grading: "LiveProvider | None" = None
    """For grading; None: the same."""


@contextmanager
def open_provider(study: Study, scratch: Path, *, allow_unsandboxed: bool) -> Iterator[OpenProvider]:
    """The study's sandbox providers, closed at the end; `auto` takes namespaces where the kernel allows them."""
    with ExitStack() as stack:
        opened = _open_one(study, scratch, allow_unsandboxed)
        stack.enter_context(closing(opened.provider))
        if (graders := grading_study(study)) is not None:
            other = _open_one(graders, scratch, allow_unsandboxed)
            stack.enter_context(closing(other.provider))
            said = tuple(f"grading: {note}" for note in other.degraded if note not in opened.degraded)
            opened = OpenProvider(opened.provider, opened.degraded + said + _no_network(graders), other.provider)
        opened = replace(opened, degraded=opened.degraded + _empty_submissions(study))
        yield opened


@contextmanager
def open_graders(study: Study, scratch: Path, *, allow_unsandboxed: bool) -> Iterator[OpenProvider]:
    """Sandboxes to grade in alone, closed at the end."""
    graders = grading_study(study) or study
    opened = _open_one(graders, scratch, allow_unsandboxed)
    with closing(opened.provider):
        yield OpenProvider(opened.provider, opened.degraded + _no_network(graders))


def _empty_submissions(study: Study) -> tuple[str, ...]:
    """Our own prompt asks for the submit word alone: what a model submits holds no patch."""
    asked = any(not isinstance(model, ScriptedModel) for model in study.models.values())
    if study.grading.of == "working_tree" or study.scaffold.name != "forkroll" or not asked:
        return ()
    return ("grading: of submissions, though scaffold `forkroll` asks models for none: use grading.of=working_tree",)


def _no_network(graders: Study) -> tuple[str, ...]:
    if graders.sandbox.network or graders.tasks.set in TREES_OF_THEIR_OWN:
        return ()
    return ("grading: without a network, which the official harness gives tests (grading.sandbox)",)


def grading_study(study: Study) -> Study | None:
    """The study with graders' sandboxes for its own; None where grading is done in those of the rollouts.

    Tests of `swebench` expect a machine to themselves: unless the study says otherwise they run as root without the
    rollouts' limits, as in the official harness. The disk stays bounded: tests may print for ever.
    """
    sandbox = study.grading.sandbox
    if sandbox is None and study.tasks.set not in TREES_OF_THEIR_OWN:
        freed = {"memory_bytes": None, "processes": None, "disk_bytes": GRADING_DISK_BYTES, "cpus": None, "user": None}
        sandbox = study.sandbox.model_copy(update=freed)
    return None if sandbox is None else study.model_copy(update={"sandbox": sandbox})


def _open_one(study: Study, scratch: Path, allow_unsandboxed: bool) -> OpenProvider:
    if study.sandbox.provider == "docker":
        return _open_docker(study, scratch)
    if study.tasks.set not in TREES_OF_THEIR_OWN:
        raise ConfigError(f"tasks of `{study.tasks.set}` live in Docker images: they need `sandbox: docker`")
    return _open_here(study, scratch, allow_unsandboxed)


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

    refuse_models_of_ours(study, study.dialect)
    scaffold = MiniScaffold.named(study.scaffold.config, study.dialect)
    scaffold.require_kept(study.sandbox.output_bytes)
    return scaffold


def scaffold_of(study: Study, base: Trajectory) -> Scaffold:
    """The scaffold in which `base` was rolled out, and its branches go on: the study's, or that of its log."""
    return open_scaffold(study) if base.source is None else logged_scaffold(base.source)


def refuse_models_of_ours(study: Study, dialect: Dialect) -> None:
    """Simulated models, and scripted ones in the text dialect, write what only our own scaffold reads."""
    cards = cards_of(study)
    for name, model in study.models.items():
        simulated = isinstance(model, SimulatedModel) or (name in cards and cards[name].server == "simulated")
        if simulated or (isinstance(model, ScriptedModel) and dialect == "text"):
            kind = "simulated" if simulated else "scripted"
            raise ConfigError(
                f"model {name!r} is {kind}: with `dialect: {dialect}` it knows no scaffold but `forkroll`"
            )


def scaffold_notes(study: Study, provider: SandboxProvider) -> list[str]:
    """Where the study departs from its scaffold's configuration, a line each."""
    if study.scaffold.name == "forkroll":
        return []
    from harness.scaffold.mini import MiniScaffold

    scaffold = MiniScaffold.named(study.scaffold.config, study.dialect)
    notes = scaffold.notes(study.limits)
    if not provider.isolated and "BASH_ENV" in scaffold.environment:
        notes.append(f"actions read {scaffold.environment['BASH_ENV']} of this machine: the sandbox isolates nothing")
    return notes


def sampling_of(study: Study) -> Sampling:
    """How the study draws completions."""
    wanted = study.sampling
    return Sampling(wanted.temperature, wanted.max_tokens, wanted.logprobs)


def agents_maker(study: Study, clients: Mapping[str, ModelClient]) -> Callable[[Scaffold], Mapping[str, Agent]]:
    """Makes fresh agents for one rollout in a scaffold."""
    sampling = sampling_of(study)
    return lambda scaffold: {name: ModelAgent(client, scaffold, sampling) for name, client in clients.items()}


def stage_of(
    study: Study,
    tasks: TaskSet,
    provider: SandboxProvider,
    clients: Mapping[str, ModelClient],
    *,
    grading: SandboxProvider | None = None,
) -> Stage:
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
        grading_provider=grading,
    )
