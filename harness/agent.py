"""An agent maps a history to the next reply: conversation, client and sampling put together.

An agent belongs to one rollout (it keeps the rollout's conversation); the client behind it is shared.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from harness.errors import ContextOverflow
from harness.model.protocol import Message, ModelClient, Sampling
from harness.prompting import Conversation
from harness.record import Circumstances, Reply, Step, Task
from harness.scaffold.protocol import Scaffold


@dataclass(frozen=True)
class Decision:
    """A reply, and under what circumstances it was given."""

    reply: Reply
    circumstances: Circumstances
    request_digest: str
    """Of all that was sent but the seed."""


class Agent(Protocol):
    """Decides the next reply."""

    @property
    def scaffold(self) -> Scaffold:
        """How it is spoken to."""
        ...

    def decide(
        self, task: Task, history: Sequence[Step], *, seed: int, opening: Sequence[Message] | None = None
    ) -> Decision:
        """The reply to `history`, drawn with `seed`; `opening` stands for the scaffold's own first messages."""
        ...


class ModelAgent:
    """A model behind a client, spoken to as a scaffold says."""

    def __init__(self, client: ModelClient, scaffold: Scaffold, sampling: Sampling) -> None:
        self._client, self.scaffold, self._sampling = client, scaffold, sampling
        self._conversation: Conversation | None = None

    def decide(
        self, task: Task, history: Sequence[Step], *, seed: int, opening: Sequence[Message] | None = None
    ) -> Decision:
        """Render what is new in `history`, ask, parse."""
        if self._conversation is None:
            self._conversation = Conversation(task, self.scaffold, opening)
        messages, tools = self._conversation.follow(task, history), self.scaffold.tools()
        request_digest = self._conversation.request_digest(tools, self._sampling)
        started_at, clock = datetime.now(UTC).isoformat(), time.monotonic()
        try:
            completion = self._client.complete(messages, tools=tools, sampling=self._sampling, seed=seed)
        except ContextOverflow as error:
            error.request_digest = request_digest
            raise
        took = time.monotonic() - clock
        answered = took if completion.seconds is None else completion.seconds
        circumstances = Circumstances(
            started_at=started_at,
            model_seconds=answered,
            waited_seconds=took - answered,
            cached_prompt_tokens=completion.cached_prompt_tokens,
            in_flight=completion.in_flight,
            server_epoch=completion.server_epoch,
            prompt_digest=completion.prompt_digest,
            transport_retries=completion.retries,
        )
        return Decision(self.scaffold.parse(completion), circumstances, request_digest)
