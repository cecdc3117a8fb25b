"""What every model client does: complete a conversation, score an action that was taken in it.

Messages are in OpenAI's chat form. A client that cannot get an answer raises ModelError after bounded retries;
a conversation that does not fit raises ContextOverflow at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.record import How, Tokens, ToolCall, Usage

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Sampling:
    """How a completion is drawn."""

    temperature: float = 0.0
    max_tokens: int = 2048
    logprobs: bool = False


@dataclass(frozen=True)
class Completion:
    """One completion, as the server sent it; nothing is parsed yet."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    usage: Usage
    model: str
    reasoning: str | None = None
    tokens: Tokens | None = None
    prompt_digest: str | None = None
    """Of the prompt's token ids; None where the server does not give them."""
    propensity: float | None = None
    cached_prompt_tokens: int | None = None
    server_epoch: str | None = None
    in_flight: int | None = None
    retries: int = 0
    seconds: float | None = field(default=None, compare=False)
    """Of the attempt that was answered; None: the call took no longer than that."""


@dataclass(frozen=True)
class Said:
    """An assistant message as it was generated, markup and reasoning included, cut where its action begins."""

    before: str
    action: str
    end: str = ""
    """How the server spelled the token that ended the turn; empty where it logged none."""
    before_ids: tuple[int, ...] | None = None
    """None where ids were not logged."""
    action_ids: tuple[int, ...] | None = None
    """Those of `end` included."""


@dataclass(frozen=True)
class Scored:
    """What a model gives an action."""

    logprob: float | None
    """Natural logarithm at temperature 1; None when unknown."""
    tokens: int | None
    """So many tokens make the sum up; None when unknown."""
    how: How | None
    """None when nothing could be asked."""
    why: str = ""
    """Why it is unknown."""
    prompt_digest: str | None = None
    """Of the prompt's token ids; None where they are not known."""


class ModelClient(Protocol):
    """A model behind a seam."""

    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        seed: int,
    ) -> Completion:
        """Ask for the next assistant message."""
        ...

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        """The log-probability of `said`'s action right after what stands before it, as the next assistant message."""
        ...
