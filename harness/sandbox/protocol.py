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
    tree: Path | None
    """Folder on the host that holds the start tree, its .git included. Never written to. None: `docker` holds it."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the provider's environment."""
    docker: str | None = None
    """Reference of a Docker image that already holds the tree at `cwd`; None: the tree is put into the provider's."""
    cwd: str = "/testbed"
    """Where the tree lies inside, and where actions run. `local` puts it elsewhere."""
    own_environment: bool = False
    """True: actions get the image's own variables, PATH and HOME, and none of the provider's."""


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

    @property
    def digest_method(self) -> str:
        """How `digest` is taken. All give the same digest.

        "overlay": the start state's entries and a walk of the upper layer; "scan": a walk of the tree on the host;
        "inside": one pass inside; "table": nothing is walked.
        """
        ...

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

    def processes(self) -> tuple[str, ...] | None:
        """Names of the processes alive now, the runner apart, sorted; None when it cannot be said.

        A name is the kernel's (15 bytes at most), "?" for what is no printable ASCII in it.
        """
        ...

    def change_mark(self) -> str | None:
        """Names the present state of all that a snapshot holds: equal marks of one sandbox, equal snapshots.

        None when no such name is to be had at much less than a snapshot's cost.
        """
        ...

    def snapshot(self, into: Path) -> bool:
        """Write all that was changed against the image as one archive at `into`; see `archive` for its format.

        Files only: live processes are not in it. False, and no file, when this kind of sandbox or the state that it
        is in cannot be captured.
        """
        ...

    def shell_argv(self) -> list[str]:
        """Command line, for this machine, of a bash inside in the working folder, with the environment of actions."""
        ...


class SandboxProvider(Protocol):
    """Starts sandboxes from images."""

    name: str
    isolated: bool
    """False: commands run on this machine as this user."""

    def start(self, image: Image, *, snapshot: Path | None = None) -> AbstractContextManager[Sandbox]:
        """A fresh sandbox at the image's start state, or at that of `snapshot`, an archive made by `Sandbox.snapshot`.

        Nothing of it is left when the context ends. A damaged or foreign archive is a SandboxError that names it.
        """
        ...
