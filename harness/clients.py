"""A client for each model that a study names; servers that a study brings along start with them, and end with them.

A model behind HTTP, whoever started its server, is an `OpenAIModel` here: its address, and how it is spoken to.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bundled import cache_folder
from harness.config import OpenAIModel, RecordedModel, ScriptedModel, ServedModel, SimulatedModel, Study
from harness.errors import ConfigError
from harness.journal import RunFolder
from harness.model.protocol import ModelClient
from harness.scaffold.protocol import Dialect
from harness.serving.card import ModelCard, check_together, load_card

if TYPE_CHECKING:
    from harness.model.gate import Gate
    from harness.model.keys import Key
    from harness.model.openai import OpenAIClient
    from harness.model.patience import Patience
    from harness.model.recorded import Cassette
    from harness.model.request import RequestForm
    from harness.model.simulated.process import SimulatedServer
    from harness.serving.asking import Asking
    from harness.serving.server import Launch, RunningServer


@dataclass(frozen=True)
class OpenModels:
    """A client for each of the study's models that can be asked, and what a manifest should say of them."""

    clients: Mapping[str, ModelClient]
    facts: Mapping[str, object]
    spoken: "Mapping[str, Spoken]" = field(default_factory=dict)
    """Those that are behind HTTP."""
    servers: "Sequence[SimulatedServer]" = ()
    """Simulated servers that were started for the run."""
    keys: Sequence[str] = ()
    """What is wrong with how keys are kept."""

    def notes(self) -> list[str]:
        """What is less than the study asks for, as far as it has shown."""
        told = [f"model {name!r}: {note}" for name, one in self.spoken.items() for note in one.client.notes()]
        return [*self.keys, *told]


@dataclass(frozen=True)
class Spoken:
    """A model behind HTTP."""

    address: OpenAIModel
    client: "OpenAIClient"
    asking: "Asking"
    """How the self-test asks it."""


@contextmanager
def open_models(study: Study) -> Iterator[OpenModels]:
    """Start the servers that the study brings along, and make a client for each model. Of somebody's servers the
    metrics are looked at, for when they started; no model is asked."""
    with ExitStack() as stack:
        opening = _Opening(study, stack)
        for name, model in study.models.items():
            if isinstance(model, ScriptedModel):
                opening.add(name, _scripted(model), model.model_dump())
            elif isinstance(model, RecordedModel):
                opening.add(name, _recorded(name, model), model.model_dump())
            elif isinstance(model, OpenAIModel):
                opening.add_spoken(name, model, model.model_dump())
                opening.name_start(name, model)
            else:
                opening.facts[name] = model.model_dump()
        opening.add_served()
        opening.add_simulated()
        yield opening.opened()


class _Opening:
    """Collects the clients of one study."""

    def __init__(self, study: Study, stack: ExitStack) -> None:
        self._study, self._stack = study, stack
        self._gates: dict[str, Gate] = {}
        self._clients: dict[str, ModelClient] = {}
        self._spoken: dict[str, Spoken] = {}
        self._servers: list[SimulatedServer] = []
        self._keys: list[str] = []
        self.facts: dict[str, object] = {}

    def opened(self) -> OpenModels:
        """In the study's order."""
        clients = {name: self._clients[name] for name in self._study.models if name in self._clients}
        return OpenModels(clients, self.facts, self._spoken, self._servers, self._keys)

    def add(self, name: str, client: ModelClient, facts: object) -> None:
        self._clients[name], self.facts[name] = client, facts

    def add_spoken(self, name: str, address: OpenAIModel, facts: object) -> None:
        from harness.model.keys import read_key

        key, note = read_key(address.api_key_env, address.api_key_file, f"models.{name}")
        self._keys += [] if note is None else [note]
        client = _client(name, address, key, self._gate(address))
        self._stack.callback(client.close)
        self._spoken[name] = Spoken(address, client, _asking(address, key))
        self.add(name, client, facts)

    def name_start(self, name: str, address: OpenAIModel) -> None:
        """Which start of somebody's server this is, where its metrics tell."""
        from harness.serving.epoch import EpochClient, epoch_by_metrics

        epoch = epoch_by_metrics(name, address.base_url.rstrip("/").removesuffix("/v1"))
        if epoch is not None:
            self._clients[name] = EpochClient(self._spoken[name].client, epoch)

    def add_served(self) -> None:
        """Models that a card describes."""
        from harness.serving.epoch import EpochClient

        served = {name: model for name, model in self._study.models.items() if isinstance(model, ServedModel)}
        for name, server in _start_served(served, self._stack).items():
            facts = {**served[name].model_dump(), **server.facts}
            self.add_spoken(name, address_of(server.card, served[name]), facts)
            self._clients[name] = EpochClient(self._spoken[name].client, server.epoch)

    def add_simulated(self) -> None:
        """One server a noise kind: the noise is a property of a server, not of a request."""
        from harness.model.simulated.process import SimulatedServer

        models = {name: model for name, model in self._study.models.items() if isinstance(model, SimulatedModel)}
        kinds = dict.fromkeys(model.noise for model in models.values())
        servers = {kind: self._stack.enter_context(SimulatedServer(["--noise", kind])) for kind in kinds}
        self._servers += servers.values()
        for name, model in models.items():
            address = OpenAIModel(client="openai", base_url=servers[model.noise].base_url, model=model.profile)
            self.add_spoken(name, address, {**model.model_dump(), "served_over": "http"})

    def _gate(self, address: OpenAIModel) -> "Gate":
        """One gate a family; of several caps the lowest holds."""
        from harness.model.gate import Gate

        family = _family(address)
        if family not in self._gates:
            stated = [model for model in self._study.models.values() if isinstance(model, OpenAIModel)]
            caps = [model.concurrency for model in (address, *stated) if _family(model) == family and model.concurrency]
            self._gates[family] = Gate(min(caps, default=None))
        return self._gates[family]


def _family(model: OpenAIModel) -> str:
    return model.family or model.base_url.rstrip("/")


def _client(name: str, address: OpenAIModel, key: "Key", gate: "Gate") -> "OpenAIClient":
    from harness.model.openai import OpenAIClient

    return OpenAIClient(
        address.base_url,
        address.model,
        key=key,
        form=_form(address),
        patience=_patience(address),
        gate=gate,
        say=lambda text: print(f"note: model {name!r}: {text}", file=sys.stderr),
    )


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


def _asking(model: OpenAIModel, key: "Key") -> "Asking":
    from harness.serving.asking import Asking

    return Asking(
        model.base_url,
        model.model,
        form=_form(model),
        key=key,
        timeout_s=model.request_seconds,
    )


def _scripted(model: ScriptedModel) -> ModelClient:
    from harness.model.scripted import ScriptedClient

    return ScriptedClient(model.commands)


# --- served models


def cards_of(study: Study) -> dict[str, ModelCard]:
    """The study's name of a model -> its card, for the models that have one."""
    return {name: load_card(model.card) for name, model in study.models.items() if isinstance(model, ServedModel)}


def check_cards(study: Study, dialect: Dialect) -> None:
    """Refuse cards that do not go together, or not with the way the study speaks to models."""
    cards = cards_of(study)
    check_together(list({card.name: card for card in cards.values()}.values()))
    for name, card in cards.items():
        if dialect == "tool_call" and card.server == "vllm" and card.tool_parser is None:
            raise ConfigError(
                f"model {name!r}: card {card.name} parses no tool calls (`tool_parser`); set dialect=text"
            )


def launch(python: str | None = None) -> "Launch":
    """How model servers are started, told on standard error."""
    from harness.serving.server import Launch

    return Launch(cache_folder(), lambda text: print(text, file=sys.stderr), python)


def _start_served(models: Mapping[str, ServedModel], stack: ExitStack) -> "dict[str, RunningServer]":
    """The study's name of a model -> its server; models that name one card share its server."""
    if not models:
        return {}
    from harness.serving.server import serving

    cards = {name: load_card(model.card) for name, model in models.items()}
    distinct = {card.name: card for card in cards.values()}
    running = stack.enter_context(serving(list(distinct.values()), launch()))
    by_card = dict(zip(distinct, running, strict=True))
    return {name: by_card[card.name] for name, card in cards.items()}


def address_of(card: ModelCard, model: ServedModel) -> OpenAIModel:
    """A served model as any other behind a server."""
    return OpenAIModel(
        client="openai",
        base_url=card.base_url,
        model=card.served,
        request_seconds=model.request_seconds,
        omit=model.omit,
        chat_template_kwargs=card.chat_template_kwargs,
        extra_body={**card.extra_body, **model.extra_body},
    )


# --- recorded models


def recorded_models(study: Study, source: Path) -> OpenModels:
    """Every model of the study answered from the records of the run at `source`: no server is started or asked."""
    from harness.model.recorded import RecordedClient

    cassette = _cassette(source)
    if not set(cassette.models()) & set(study.models):
        raise ConfigError(f"{source}: no steps by {', '.join(study.models)}; it has {_listed(cassette.models())}")
    clients = {name: RecordedClient(cassette, name) for name in study.models}
    facts = {name: {"client": "recorded", "run": str(source), "model": name} for name in study.models}
    return OpenModels(clients, facts)


def _recorded(name: str, model: RecordedModel) -> ModelClient:
    from harness.model.recorded import RecordedClient

    cassette = _cassette(Path(model.run))
    if model.model not in cassette.models():
        has = _listed(cassette.models())
        raise ConfigError(f"model {name!r}: {model.run} has no steps by {model.model!r}; it has {has}")
    return RecordedClient(cassette, model.model)


def _cassette(source: Path) -> "Cassette":
    from harness.model.recorded import cassette_of

    folder = RunFolder(source).require()
    folder.manifest()  # refuses another schema: its requests have no names or other ones
    return cassette_of(folder.records(), str(source))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
