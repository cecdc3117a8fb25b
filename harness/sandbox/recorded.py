"""A sandbox that runs nothing: a state machine whose answers were taken once from a real one.

It holds for commands of two kinds: those that put the tree into a named state, whatever it was, and those that leave it
as it is. Then the state and the command decide the answer, and a rollout costs no process. A command that is not in the
table is a SandboxError: an answer made up would be worse.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import SandboxError
from harness.record import Observation
from harness.sandbox.protocol import Image, Sandbox, SandboxProvider


@dataclass(frozen=True)
class Table:
    """Everything that can be seen of one start tree."""

    image: str
    start: str
    """Name of the state before the first command."""
    moves: Mapping[str, str]
    """Command -> the state that it leaves behind; any other command changes nothing."""
    answers: Mapping[tuple[str, str], Observation]
    """(state before, command) -> what came back."""
    diffs: Mapping[str, bytes]
    """State -> working diff."""

    def digest(self, state: str) -> str:
        """Names a state; equal exactly for equal states, but no digest of any real tree."""
        return hashlib.sha256(f"{self.image}\0{state}".encode()).hexdigest()


class TableSandbox:
    """Answers from a table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.state = table.start
        """Name of the state that the tree is in."""

    def act(self, command: str, *, timeout_s: float) -> Observation:
        """What the command printed in this state."""
        answer = self._table.answers.get((self.state, command))
        if answer is None:
            raise SandboxError(f"not in the table of {self._table.image}: {command[:60]!r} in state {self.state}")
        self.state = self._table.moves.get(command, self.state)
        return answer

    def read_file(self, path: str) -> bytes:
        """Refused: a table holds no files."""
        raise SandboxError(f"a table holds no files: {path}")

    def write_file(self, path: str, content: bytes) -> None:
        """Refused: a table holds no files."""
        raise SandboxError(f"a table holds no files: {path}")

    @property
    def digest_method(self) -> str:
        """Nothing is walked."""
        return "table"

    def processes(self) -> tuple[str, ...] | None:
        """None are left: an answer is all that there is of a command."""
        return ()

    def change_mark(self) -> str | None:
        """The state's name."""
        return self.state

    def snapshot(self, into: Path) -> bool:
        """Refused: a table holds no files."""
        return False

    def shell_argv(self) -> list[str]:
        """Refused: there is nothing to be inside of."""
        raise SandboxError(f"a table has no inside: {self._table.image}")

    def digest(self) -> str | None:
        """Names the state."""
        return self._table.digest(self.state)

    def working_diff(self, base_commit: str) -> bytes:
        """As recorded for the state."""
        return self._table.diffs[self.state]


class TableProvider:
    """Sandboxes over tables, found by the image's name."""

    name = "table"
    isolated = True

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables

    @contextmanager
    def start(self, image: Image, *, snapshot: Path | None = None) -> Iterator[TableSandbox]:
        """A sandbox in the start state."""
        if snapshot is not None:
            raise SandboxError(f"{snapshot}: a table cannot be brought to a snapshot")
        if image.name not in self._tables:
            raise SandboxError(f"no table of {image.name}")
        yield TableSandbox(self._tables[image.name])


def record(
    image: Image,
    provider: SandboxProvider,
    *,
    base_commit: str,
    start: str,
    moves: Mapping[str, str],
    looks: Sequence[str],
    timeout_s: float = 60.0,
) -> Table:
    """Take the table of `image`: bring a sandbox into each state and run every command there.

    `looks` must leave the tree as it is; one that does not is a SandboxError, told by the sandbox's digest.
    """
    answers: dict[tuple[str, str], Observation] = {}
    diffs: dict[str, bytes] = {}
    for state, way in [(start, None), *((state, command) for command, state in moves.items())]:
        with provider.start(image) as sandbox:
            if way is not None:
                sandbox.act(way, timeout_s=timeout_s)
            for command in looks:
                answers[state, command] = _look(sandbox, command, timeout_s)
            diffs[state] = sandbox.working_diff(base_commit)
            for command in moves:  # last: from here on the state is another
                answers[state, command] = sandbox.act(command, timeout_s=timeout_s)
    return Table(image=image.name, start=start, moves=moves, answers=answers, diffs=diffs)


def _look(sandbox: Sandbox, command: str, timeout_s: float) -> Observation:
    before = sandbox.digest()
    seen = sandbox.act(command, timeout_s=timeout_s)
    if sandbox.digest() != before:
        raise SandboxError(f"the command changed the tree, so no table can hold it: {command[:60]!r}")
    return seen
