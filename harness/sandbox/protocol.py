"""What every sandbox does, whatever it is made of.

An action is a fresh `bash -c` in the configured folder and environment with empty stdin. No state but the file
system passes from one action to the next. A sandbox that is lost or damaged raises SandboxError; it never
answers with an observation.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.record import Observation


@dataclass(frozen=True)
class Image:
    """The start state of a task's sandbox."""

    name: str
    """Unique and stable: content of the tree decides it."""
    tree: Path
    """Folder on the host that holds the start tree, its .git included. Never written to."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the provider's environment."""


@dataclass(frozen=True)
class SandboxLimits:
    """What one sandbox may use. None: no limit is asked for."""

    output_bytes: int = 64 * 1024
    """Of one action's output kept in an observation: half head, half tail."""
    disk_bytes: int | None = 512 * 1024 * 1024
    memory_bytes: int | None = 2 * 1024**3
    processes: int | None = 256


class Sandbox(Protocol):
    """One running sandbox."""

    def act(self, command: str, *, timeout_s: float) -> Observation:
        """Run `command`; every process of the step is ended when `timeout_s` has passed."""
        ...

    def read_file(self, path: str) -> bytes:
        """Content of the file at `path` (relative paths: from the working tree)."""
        ...

    def write_file(self, path: str, content: bytes) -> None:
        """Make the file at `path`, parents included."""
        ...

    def digest(self) -> str | None:
        """Digest of the working tree and git HEAD, index-independent; None when it cannot be said."""
        ...

    def working_diff(self, base_commit: str) -> bytes:
        """Binary-safe `git diff` of the working tree, untracked files included; the index stays untouched."""
        ...


class SandboxProvider(Protocol):
    """Starts sandboxes from images."""

    name: str
    isolated: bool
    """False: commands run on this machine as this user."""

    def start(self, image: Image) -> AbstractContextManager[Sandbox]:
        """A fresh sandbox at the image's start state; nothing of it is left when the context ends."""
        ...
