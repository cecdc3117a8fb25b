"""What every model client does: complete a conversation, score a given continuation.

Messages are in OpenAI's chat form. A client that cannot get an answer raises ModelError after bounded retries;
a conversation that does not fit raises ContextOverflow at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.record import Tokens, ToolCall, Usage

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

    def score(
        self, messages: Sequence[Message], continuation: str, action: str, *, tools: Sequence[Mapping[str, Any]]
    ) -> float | None:
        """Log-probability at temperature 1 of `action` written right after `continuation` in the next
        assistant message; None where the server cannot say."""
        ...
