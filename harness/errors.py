"""Every error that forkroll raises on purpose, and who has to act on it.

    ForkrollError
    +-- UsageError             the person must fix something; one line, exit code 2, nothing written
    |   +-- ConfigError        a study file, an override or a name
    |   +-- JournalError       a run folder: foreign, locked or corrupt
    +-- RolloutError           infrastructure; becomes a Failure row, is retried, is never an outcome
        +-- ModelError         the model server
        |   +-- ContextOverflow    the conversation no longer fits: a stop reason, not a failure
        |   +-- NotRecorded        a recorded model was asked what the records do not hold: asking again is no use
        +-- SandboxError       the sandbox is lost or damaged
        +-- ScoringError       grading could not be carried out

A command that fails inside a sandbox is none of these: it is an observation.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class ForkrollError(Exception):
    """Root of the tree."""


class UsageError(ForkrollError):
    """The person must fix something; the message says what."""


class ConfigError(UsageError):
    """A study file, an override or a name is wrong."""


class JournalError(UsageError):
    """A run folder is foreign, locked or corrupt."""


class RolloutError(ForkrollError):
    """Infrastructure failed; `side` names which."""

    side = "harness"


class ModelError(RolloutError):
    """The model server failed in a way that retries did not mend."""

    side = "model"


class ContextOverflow(ModelError):
    """The conversation no longer fits the model's context."""

    request_digest: str | None = None
    """Names the request; None until an agent says so."""


class NotRecorded(ModelError):
    """The records hold no answer to this request. Final for its cell, and no sign that other cells will fail."""


class SandboxError(RolloutError):
    """The sandbox is lost or damaged."""

    side = "sandbox"


class ScoringError(RolloutError):
    """Grading could not be carried out."""

    side = "scoring"


@contextmanager
def attribute(kind: type[RolloutError], doing: str) -> Iterator[None]:
    """Turn any unnamed exception inside into `kind`, so that a failure carries the address of its side."""
    try:
        yield
    except ForkrollError:
        raise
    except Exception as error:
        raise kind(f"{doing}: {type(error).__name__}: {error}") from error
