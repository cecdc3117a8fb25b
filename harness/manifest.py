"""What made a run: enough to say why two runs differ. Written once a session, before anything is run."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import harness
from harness.config import Study, identity
from harness.record import SCHEMA_VERSION, Task
from harness.scaffold.protocol import Scaffold

_PACKAGES = ("httpx", "jinja2", "mini-swe-agent", "numpy", "pydantic", "pyyaml", "rapidfuzz", "typer")


def study_digest(study: Study) -> str:
    """Digest of what decides the content of a run: operational keys are left out."""
    return hashlib.sha256(json.dumps(identity(study), sort_keys=True).encode()).hexdigest()


def prompts_digest(scaffold: Scaffold) -> str:
    """Digest of the prompts and tool schema as they would be sent for a fixed task."""
    probe = Task(instance_id="-", repo="-", base_commit="-", problem_statement="-")
    sent = [[dict(message) for message in scaffold.opening(probe)], list(scaffold.tools()), dict(scaffold.facts())]
    return hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()


def tasks_digest(tasks: Sequence[Task]) -> dict[str, str]:
    """instance_id -> digest of the task's text, start commit and tests."""
    return {task.instance_id: hashlib.sha256(task.model_dump_json().encode()).hexdigest() for task in tasks}


def new_manifest(study: Study, scaffold: Scaffold, tasks: Sequence[Task]) -> dict[str, Any]:
    """The part that every session of a run shares."""
    return {
        "schema": SCHEMA_VERSION,
        "study": study.name,
        "directions": list(study.directions),
        "study_digest": study_digest(study),
        "scaffold": dict(scaffold.facts()),
        "prompts_digest": prompts_digest(scaffold),
        "tasks": tasks_digest(tasks),
        "sessions": [],
    }


def session(sandbox: str, degraded: Sequence[str], models: Mapping[str, object]) -> dict[str, Any]:
    """One session of the driver."""
    return {
        "started_at": datetime.now(UTC).isoformat(),
        "forkroll": harness.__version__,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "sandbox": sandbox,
        "degraded": list(degraded),
        "models": dict(models),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of the checkout that this code runs from, "+" when it was changed since; None outside a checkout."""
    root = Path(harness.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
