"""What every importer does: turn one document of a foreign log into a base, without loss, or say where it cannot.

What a log does not say stays unknown in the record; nothing is filled in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness.record import Trajectory


@dataclass(frozen=True)
class Document:
    """One rollout as a log holds it."""

    name: str
    """File name, with the line where a file holds several."""
    content: Any
    """Parsed JSON, lone surrogates replaced."""
    sha256: str
    """Of the content as JSON with indent 2, before anything was replaced."""
    task_id: str | None = None
    """Where the file says it beside the content."""
    run: str = ""
    resolved: bool | None = None
    """The verdict that comes with the log; None: it was never graded."""


@dataclass(frozen=True)
class Imported:
    """A base made of a document."""

    base: Trajectory
    """Its id is `task:agent`."""
    model: str
    """As the log names it."""
    remarks: tuple[str, ...] = ()
    """What a person should know, each in words that are the same for every document it is true of."""


@dataclass(frozen=True)
class Refused:
    """A document, or a file, that could not be imported."""

    name: str
    place: str
    """Where in the document; empty: all of it."""
    problem: str

    def line(self) -> str:
        """The refusal for a person."""
        return f"{self.name}: {f'{self.place}: ' if self.place else ''}{self.problem}"


class ImportFault(Exception):
    """A document cannot be imported."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.place, self.problem = place, problem


class Importer(Protocol):
    """Reads one kind of log."""

    @property
    def kind(self) -> str:
        """As the command line names it."""
        ...

    def read(self, document: Document, agent: str) -> Imported:
        """The base that `document` holds, as one of `agent`. Raises ImportFault."""
        ...


def member(value: Any, key: str, kind: type | tuple[type, ...], place: str) -> Any:
    """`value[key]`, which must be there and of that type."""
    where = f"{place}.{key}" if place else key
    if not isinstance(value, Mapping) or key not in value:
        raise ImportFault(where, "missing")
    found = value[key]
    if not isinstance(found, kind):
        raise ImportFault(where, f"of type {type(found).__name__}, which this format does not have here")
    return found
