"""A model card says how one model is served: enough to start the server again, and to say in a paper what it was.

A card is a YAML file; `configs/models` holds those that ship. Unknown keys are errors. What a card has a key for is not
to be written among `flags` as well, so that nothing is said twice.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from harness.bundled import bundled
from harness.config import Positive, Section, check_extra_body, explain, read_keys
from harness.errors import ConfigError

Flag = bool | int | float | str | dict[str, Any]
"""True: the bare flag. A mapping: JSON."""
FlagName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]

_OWN_KEYS = {
    "model": "model",
    "revision": "revision",
    "served-model-name": "served_name",
    "models": "model",
    "host": "host",
    "port": "port",
    "gpu-memory-utilization": "gpu_memory_fraction",
    "max-model-len": "context",
    "tool-call-parser": "tool_parser",
    "enable-auto-tool-choice": "tool_parser",
    "override-generation-config": "sampling",
    "api-key": "nothing: cards hold no secrets, and servers listen on this machine alone",
}
"""Flag -> the card's own key for it."""
_SECRET = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSW[A-Z]*|CREDENTIALS?|AUTH[A-Z]*)($|_)", re.IGNORECASE)


class BatchInvariance(Section):
    """Whether replies are meant not to depend on what else is in a batch."""

    asked: bool = False
    """The server is started in its batch-invariant mode."""
    validated: bool | None = None
    """This model is among those for which the server's makers have validated it; None: not known."""


class ModelCard(Section):
    """One model as one server serves it."""

    name: str
    """The card's file name without `.yaml`."""
    server: Literal["vllm", "simulated"] = "vllm"
    model: str = Field(min_length=1)
    """vllm: repository id or folder, in which {cache} stands for forkroll's cache folder. simulated: a profile."""
    revision: str | None = None
    """Commit of the repository; None: whatever the machine's download cache holds, which is recorded."""
    served_name: str | None = None
    """Name that requests ask for; None: `model`."""
    quantisation: str | None = None
    """Of the checkpoint, in words; the server reads it from the checkpoint. None: none."""
    host: str = "127.0.0.1"
    port: int = Field(ge=1, le=65535)
    gpu: Annotated[int, Field(ge=0)] | None = None
    """Which of the GPUs that are visible; None: the server uses none."""
    gpu_memory_fraction: float | None = Field(default=None, gt=0, le=1)
    """Of that GPU's memory."""
    context: Positive | None = None
    """Tokens of prompt and reply together; None: what the checkpoint says."""
    tool_parser: str | None = None
    """None: the server parses no tool calls; the dialect must be `text`."""
    flags: dict[FlagName, Flag] = Field(default_factory=dict)
    """Further flags of the server, without dashes in front."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the server beyond those it inherits."""
    sampling: dict[str, float | int] = Field(default_factory=dict)
    """Sampling defaults for what a request leaves open; empty: the checkpoint's own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Sent with every request."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request."""
    batch_invariance: BatchInvariance = BatchInvariance()
    start_seconds: float = Field(default=900.0, gt=0)
    """Within which the server must be healthy."""
    notes: tuple[str, ...] = ()
    """Facts that a reader of results should know."""

    @property
    def served(self) -> str:
        """The name that requests ask for."""
        return self.served_name or self.model

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"{self.root_url}/v1"

    @property
    def root_url(self) -> str:
        """Scheme, host and port."""
        return f"http://{self.host}:{self.port}"

    @property
    def digest(self) -> str:
        """Of everything that may change a reply: not of where the server listens, how long it may take, or remarks."""
        content = self.model_dump(mode="json", exclude={"name", "host", "port", "start_seconds", "notes"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @model_validator(mode="after")
    def _sends_nothing_that_a_study_decides(self) -> "ModelCard":
        check_extra_body(self.extra_body)
        return self

    @model_validator(mode="after")
    def _says_nothing_twice(self) -> "ModelCard":
        for flag in self.flags:
            if flag in _OWN_KEYS:
                raise ValueError(f"`flags.{flag}`: a card's key for that is {_OWN_KEYS[flag]}")
        for variable in self.env:
            if is_secret(variable):
                raise ValueError(f"`env.{variable}`: cards hold no secrets; set it in your shell, it is passed on")
        return self

    @model_validator(mode="after")
    def _names_a_gpu_and_its_share_together(self) -> "ModelCard":
        if (self.gpu is None) != (self.gpu_memory_fraction is None):
            raise ValueError("`gpu` and `gpu_memory_fraction` go together: give both, or neither")
        if self.server == "simulated" and self.gpu is not None:
            raise ValueError("`gpu`: the simulated server uses none")
        return self


def is_secret(variable: str) -> bool:
    """Whether an environment variable's name says that its value is nobody's business."""
    return _SECRET.search(variable) is not None


def load_card(source: str) -> ModelCard:
    """The card in the file `source`, or the one in configs/models of that name."""
    path = _find(source)
    content = read_keys(path, "a model card", "port: 8001")
    if "name" in content:
        raise ConfigError(f"{path}: `name`: a card is named after its file; leave the key out")
    try:
        return ModelCard.model_validate({"name": path.stem, **content})
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, ModelCard)}") from None


def _find(source: str) -> Path:
    named = bundled("configs") / "models" / f"{source}.yaml"
    for path in (Path(source), named):
        if path.is_file():
            return path
    raise ConfigError(f"no model card {source!r}; cards that ship: {', '.join(known_cards())}")


def known_cards() -> list[str]:
    """Names of the cards that ship."""
    return sorted(path.stem for path in (bundled("configs") / "models").glob("*.yaml"))


def check_together(cards: Sequence[ModelCard]) -> None:
    """Refuse cards that cannot be served side by side: one address twice, or more than all of a GPU's memory."""
    addresses: dict[str, ModelCard] = {}
    for card in cards:
        other = addresses.setdefault(card.root_url, card)
        if other is not card:
            raise ConfigError(f"cards {other.name} and {card.name} both listen on {card.root_url}; change one `port`")
    for gpu, fractions in _fractions(cards).items():
        total = sum(fractions.values())
        if total > 1 + 1e-9:
            shares = " + ".join(f"{name} {fraction:g}" for name, fraction in fractions.items())
            raise ConfigError(f"GPU {gpu}: memory fractions add up to {total:g}, more than 1: {shares}")


def _fractions(cards: Sequence[ModelCard]) -> Mapping[int, Mapping[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for card in cards:
        if card.gpu is not None and card.gpu_memory_fraction is not None:
            found.setdefault(card.gpu, {})[card.name] = card.gpu_memory_fraction
    return found
