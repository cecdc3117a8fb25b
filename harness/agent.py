"""An agent maps a history to the next reply: conversation, client and sampling put together.

An agent belongs to one rollout (it keeps the rollout's conversation); the client behind it is shared.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from harness.model.protocol import ModelClient, Sampling
from harness.prompting import Conversation, Dialect, parse, tools
from harness.record import Circumstances, Reply, Step, Task


@dataclass(frozen=True)
class Decision:
    """A reply, and under what circumstances it was given."""

    reply: Reply
    circumstances: Circumstances


class Agent(Protocol):
    """Decides the next reply."""

    def decide(self, task: Task, history: Sequence[Step], *, seed: int) -> Decision:
        """The reply to `history`, drawn with `seed`."""
        ...


class ModelAgent:
    """A model behind a client, spoken to in one dialect."""

    def __init__(self, client: ModelClient, dialect: Dialect, sampling: Sampling) -> None:
        self._client, self._dialect, self._sampling = client, dialect, sampling
        self._conversation: Conversation | None = None

    def decide(self, task: Task, history: Sequence[Step], *, seed: int) -> Decision:
        """Render what is new in `history`, ask, parse."""
        if self._conversation is None:
            self._conversation = Conversation(task, self._dialect)
        messages = self._conversation.follow(task, history)
        started_at, clock = datetime.now(UTC).isoformat(), time.monotonic()
        completion = self._client.complete(messages, tools=tools(self._dialect), sampling=self._sampling, seed=seed)
        circumstances = Circumstances(
            started_at=started_at,
            model_seconds=time.monotonic() - clock,
            cached_prompt_tokens=completion.cached_prompt_tokens,
            in_flight=completion.in_flight,
            server_epoch=completion.server_epoch,
            transport_retries=completion.retries,
        )
        return Decision(parse(completion, self._dialect), circumstances)
