"""Turns the names in a study into parts: task set, sandbox provider, model servers, clients.

Everything heavy is imported where it is used. What had to be degraded is a line that the caller prints and records.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.agent import Agent, ModelAgent
from harness.branch import Stage
from harness.config import ModelSection, OpenAIModel, ScriptedModel, ServedModel, SimulatedModel, Study
from harness.errors import ConfigError
from harness.model.protocol import ModelClient, Sampling
from harness.prompting import OwnScaffold
from harness.record import Task
from harness.sandbox.protocol import SandboxLimits, SandboxProvider
from harness.scaffold.protocol import Scaffold
from harness.serving.card import ModelCard, check_together, load_card
from harness.tasks.protocol import TaskSet

if TYPE_CHECKING:
    from harness.model.gate import Gate
    from harness.model.openai import OpenAIClient
    from harness.model.patience import Patience
    from harness.model.request import RequestForm
    from harness.model.simulated.process import SimulatedServer
    from harness.sandbox.live import LiveProvider
    from harness.serving.asking import Asking
    from harness.serving.server import Launch, RunningServer

TASK_SETS = ("pocket",)
TREES_OF_THEIR_OWN = ("pocket",)
"""Sets whose tasks are trees on this machine: in Docker these are put into the base image."""


def cache_folder() -> Path:
    """Where start trees are kept between runs: $FORKROLL_CACHE, else the user's cache folder."""
    named = os.environ.get("FORKROLL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forkroll"


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


def _limits(study: Study) -> SandboxLimits:
    asked = study.sandbox
    return SandboxLimits(asked.output_bytes, asked.disk_bytes, asked.memory_bytes, asked.processes)


def _refuse_unsandboxed(study: Study, allowed: bool) -> None:
    cards = cards_of(study)
    real = [
        name
        for name, model in study.models.items()
        if isinstance(model, OpenAIModel) or (name in cards and cards[name].server != "simulated")
    ]
    if real and not allowed:
        raise ConfigError(
            f"model {real[0]!r} would run commands of its own choice on this machine without a sandbox; "
            "run `forkroll doctor` to see what namespaces need, or pass --allow-unsandboxed"
        )


@dataclass(frozen=True)
class OpenModels:
    """A client for each of the study's models, and what a manifest should say of the servers."""

    clients: Mapping[str, ModelClient]
    facts: Mapping[str, object]
    servers: Sequence["SimulatedServer"]
    """Simulated servers that were started for the run."""
    spoken: Mapping[str, "OpenAIClient"]
    """Those of the clients that speak HTTP."""
    addresses: Mapping[str, OpenAIModel]
    """The models that are behind a server of somebody's, served ones included; not the simulated."""
    askable: Mapping[str, "Asking"]
    """How the self-test asks each model that is behind a server."""
    keys: Sequence[str]
    """What is wrong with how keys are kept."""

    def notes(self) -> list[str]:
        """What is less than the study asks for, as far as it has shown."""
        told = [f"model {name!r}: {note}" for name, client in self.spoken.items() for note in client.notes()]
        return [*self.keys, *told]


def cards_of(study: Study) -> dict[str, ModelCard]:
    """The study's name of a model -> its card, for the models that have one."""
    return {name: load_card(model.card) for name, model in study.models.items() if isinstance(model, ServedModel)}


def check_cards(study: Study) -> None:
    """Refuse cards that do not go together, or not with the way the study speaks to models."""
    cards = cards_of(study)
    check_together(list({card.name: card for card in cards.values()}.values()))
    dialect = open_scaffold(study).dialect
    for name, card in cards.items():
        if dialect == "tool_call" and card.server == "vllm" and card.tool_parser is None:
            raise ConfigError(
                f"model {name!r}: card {card.name} parses no tool calls (`tool_parser`); set dialect=text"
            )


def launch(python: str | None = None) -> "Launch":
    """How model servers are started, told on standard error."""
    from harness.serving.server import Launch

    return Launch(cache_folder(), lambda text: print(text, file=sys.stderr), python)


@contextmanager
def open_models(study: Study) -> Iterator[OpenModels]:
    """Start the servers that the study brings along, and make a client for each model; nothing is asked of
    the models yet."""
    with ExitStack() as stack:
        running = _start_served(study, stack)
        simulated = {name: model for name, model in study.models.items() if isinstance(model, SimulatedModel)}
        servers = _start_simulated(simulated, stack)
        addresses = _addresses(study, running)
        here = {name: _here(servers[model.noise], model) for name, model in simulated.items()}
        keys: list[str] = []
        spoken = _speak(addresses | here, keys, stack)
        clients: dict[str, ModelClient] = dict(spoken)
        epochs = _epochs(addresses, running)
        for name, epoch in epochs.items():
            clients[name] = _with_epoch(spoken[name], epoch)
        for name, model in study.models.items():
            if isinstance(model, ScriptedModel):
                clients[name] = _scripted(model)
        yield OpenModels(
            clients={name: clients[name] for name in study.models},
            facts={name: _facts(model, running.get(name)) for name, model in study.models.items()},
            servers=list(servers.values()),
            spoken=spoken,
            addresses=addresses,
            askable={name: _askable(name, model) for name, model in (addresses | here).items()},
            keys=keys,
        )


def _facts(model: ModelSection, server: "RunningServer | None") -> Mapping[str, object]:
    if server is not None:
        return {**model.model_dump(), **server.facts}
    more = {"served_over": "http"} if isinstance(model, SimulatedModel) else {}
    return {**model.model_dump(), **more}


def _addresses(study: Study, running: "Mapping[str, RunningServer]") -> dict[str, OpenAIModel]:
    """Every model behind a server, a served one as any other."""
    found: dict[str, OpenAIModel] = {}
    for name, model in study.models.items():
        if isinstance(model, OpenAIModel):
            found[name] = model
        elif isinstance(model, ServedModel):
            found[name] = _address(running[name].card, model)
    return found


def _speak(models: Mapping[str, OpenAIModel], keys: list[str], stack: ExitStack) -> "dict[str, OpenAIClient]":
    gates = _gates(models.values())
    return {name: _openai(name, model, gates[_family(model)], keys, stack) for name, model in models.items()}


def _family(model: OpenAIModel) -> str:
    return model.family or model.base_url


def _gates(models: Iterable[OpenAIModel]) -> "dict[str, Gate]":
    """One gate a family; of several caps the lowest holds."""
    from harness.model.gate import Gate

    caps: dict[str, list[int]] = {}
    for model in models:
        caps.setdefault(_family(model), []).extend([model.concurrency] if model.concurrency else [])
    return {family: Gate(min(stated, default=None)) for family, stated in caps.items()}


def _scripted(model: ScriptedModel) -> ModelClient:
    from harness.model.scripted import ScriptedClient

    return ScriptedClient(model.commands)


def _openai(name: str, model: OpenAIModel, gate: "Gate", keys: list[str], stack: ExitStack) -> "OpenAIClient":
    from harness.model.keys import read_key
    from harness.model.openai import OpenAIClient

    key, note = read_key(model.api_key_env, model.api_key_file, f"models.{name}")
    keys += [] if note is None else [note]
    client = OpenAIClient(
        model.base_url,
        model.model,
        key=key,
        form=_form(model),
        patience=_patience(model),
        gate=gate,
        say=lambda text: print(f"note: model {name!r}: {text}", file=sys.stderr),
    )
    stack.callback(client.close)
    return client


def _start_served(study: Study, stack: ExitStack) -> "dict[str, RunningServer]":
    """The study's name of a model -> its server; models that name one card share its server."""
    cards = cards_of(study)
    if not cards:
        return {}
    from harness.serving.server import serving

    distinct = {card.name: card for card in cards.values()}
    running = stack.enter_context(serving(list(distinct.values()), launch()))
    by_card = dict(zip(distinct, running, strict=True))
    return {name: by_card[card.name] for name, card in cards.items()}


def _address(card: ModelCard, model: ServedModel) -> OpenAIModel:
    return OpenAIModel(
        client="openai",
        base_url=card.base_url,
        model=card.served,
        request_seconds=model.request_seconds,
        chat_template_kwargs=card.chat_template_kwargs,
        extra_body={**card.extra_body, **model.extra_body},
    )


def _epochs(addresses: Mapping[str, OpenAIModel], running: "Mapping[str, RunningServer]") -> dict[str, str]:
    """The study's name of a model -> which start of its server this is, where that can be known."""
    from harness.serving.epoch import epoch_by_metrics

    found = {name: server.epoch for name, server in running.items()}
    for name in addresses.keys() - running.keys():
        epoch = epoch_by_metrics(name, addresses[name].base_url.rstrip("/").removesuffix("/v1"))
        found |= {} if epoch is None else {name: epoch}
    return found


def _with_epoch(client: ModelClient, epoch: str) -> ModelClient:
    from harness.serving.epoch import EpochClient

    return EpochClient(client, epoch)


def _askable(name: str, model: OpenAIModel) -> "Asking":
    from harness.model.keys import read_key
    from harness.serving.asking import Asking

    key, _ = read_key(model.api_key_env, model.api_key_file, f"models.{name}")
    return Asking(model.base_url, model.model, form=_form(model), key=key, timeout_s=model.request_seconds)


def _form(model: OpenAIModel) -> "RequestForm":
    from harness.model.request import RequestForm

    return RequestForm(
        max_tokens_key=model.max_tokens_key,
        omit=frozenset(model.omit),
        chat_template_kwargs=model.chat_template_kwargs,
        extra_body=model.extra_body,
        alternate=model.roles == "alternate",
        fold_system=model.fold_system,
    )


def _patience(model: OpenAIModel) -> "Patience":
    from harness.model.patience import Patience

    return Patience(
        request_seconds=model.request_seconds,
        passing_attempts=model.attempts,
        longest_wait_seconds=model.longest_wait_seconds,
    )


def _start_simulated(models: Mapping[str, SimulatedModel], stack: ExitStack) -> "dict[str, SimulatedServer]":
    """One server a noise kind: the noise is a property of a server, not of a request."""
    from harness.model.simulated.process import SimulatedServer

    kinds = dict.fromkeys(model.noise for model in models.values())
    return {noise: stack.enter_context(SimulatedServer(["--noise", noise])) for noise in kinds}


def _here(server: "SimulatedServer", model: SimulatedModel) -> OpenAIModel:
    return OpenAIModel(client="openai", base_url=server.base_url, model=model.profile)


def open_scaffold(study: Study) -> Scaffold:
    """The study's scaffold."""
    return OwnScaffold(study.dialect)


def agents_maker(
    study: Study, scaffold: Scaffold, clients: Mapping[str, ModelClient]
) -> Callable[[], Mapping[str, Agent]]:
    """Makes fresh agents for one rollout."""
    wanted = study.sampling
    sampling = Sampling(wanted.temperature, wanted.max_tokens, wanted.logprobs)
    return lambda: {name: ModelAgent(client, scaffold, sampling) for name, client in clients.items()}


def stage_of(study: Study, tasks: TaskSet, provider: SandboxProvider, clients: Mapping[str, ModelClient]) -> Stage:
    """What every cell of the run works with."""
    scaffold = open_scaffold(study)
    return Stage(study, tasks, provider, agents_maker(study, scaffold, clients), environment=scaffold.environment)
