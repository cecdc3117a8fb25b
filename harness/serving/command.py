"""Turns a model card into the command and the environment that start its server."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigError
from harness.serving.card import Flag, ModelCard

VLLM_MODULE = "vllm.entrypoints.openai.api_server"
SIMULATED_MODULE = "harness.model.simulated.server"
PYTHON_VARIABLE = "FORKROLL_VLLM_PYTHON"
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Command:
    """How a server is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Beyond what it inherits."""

    def line(self) -> str:
        """For a shell."""
        return shlex.join(["env", *(f"{name}={value}" for name, value in self.env.items()), *self.argv])


def command_of(card: ModelCard, *, cache: Path, python: str | None = None) -> Command:
    """What starts the card's server. `python` is the interpreter that has vLLM; None: see `vllm_python`."""
    if card.server == "simulated":
        argv = [sys.executable, "-m", SIMULATED_MODULE, "--models", card.model, *_address(card), *_flags(card)]
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        return Command(tuple(argv), {"PYTHONPATH": path, **card.env})
    argv = [vllm_python(python), "-m", VLLM_MODULE, *_vllm_arguments(card, cache), *_flags(card)]
    return Command(tuple(argv), {**_visible_gpu(card), **card.env})


def vllm_python(asked: str | None) -> str:
    """The interpreter that has vLLM: as asked for, else $FORKROLL_VLLM_PYTHON, else the one that runs us."""
    return asked or os.environ.get(PYTHON_VARIABLE) or sys.executable


def model_of(card: ModelCard, cache: Path) -> str:
    """Repository id, or a folder."""
    return card.model.replace("{cache}", str(cache))


def _vllm_arguments(card: ModelCard, cache: Path) -> Iterator[str]:
    yield from ("--model", model_of(card, cache))
    if card.revision is not None:
        yield from ("--revision", card.revision)
    if card.served_name is not None:
        yield from ("--served-model-name", card.served_name)
    yield from _address(card)
    if card.gpu_memory_fraction is not None:
        yield from ("--gpu-memory-utilization", f"{card.gpu_memory_fraction:g}")
    if card.context is not None:
        yield from ("--max-model-len", str(card.context))
    if card.tool_parser is not None:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", card.tool_parser)
    if card.sampling:
        yield from ("--override-generation-config", json.dumps(card.sampling, sort_keys=True))


def _address(card: ModelCard) -> tuple[str, ...]:
    return ("--host", card.host, "--port", str(card.port))


def _flags(card: ModelCard) -> Iterator[str]:
    for name, value in card.flags.items():
        yield from _flag(name, value)


def _flag(name: str, value: Flag) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (f"--{name}",) if value else (f"--no-{name}",)
    text = json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)
    return (f"--{name}", text)


def _visible_gpu(card: ModelCard) -> dict[str, str]:
    """The card's GPU alone, counted among those that are visible to us."""
    if card.gpu is None:
        return {}
    ours = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not ours:
        return {"CUDA_VISIBLE_DEVICES": str(card.gpu)}
    visible = [entry.strip() for entry in ours.split(",")]
    if card.gpu >= len(visible):
        raise ConfigError(f"card {card.name}: gpu {card.gpu}, but CUDA_VISIBLE_DEVICES={ours} shows {len(visible)}")
    return {"CUDA_VISIBLE_DEVICES": visible[card.gpu]}
