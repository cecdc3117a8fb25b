"""A client that says which start of its server answered, where the server itself does not.

The rule: a server whose start is known by its card gives that; see `server.epoch_of`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.model.protocol import Completion, Message, ModelClient, Said, Sampling, Scored


class EpochClient:
    """A ModelClient that puts `epoch` into every completion of another one."""

    def __init__(self, client: ModelClient, epoch: str) -> None:
        self._client, self._epoch = client, epoch

    def complete(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]], sampling: Sampling, seed: int
    ) -> Completion:
        """Ask, and say which start of the server answered."""
        completion = self._client.complete(messages, tools=tools, sampling=sampling, seed=seed)
        return replace(completion, server_epoch=self._epoch)

    def score(self, messages: Sequence[Message], said: Said, *, tools: Sequence[Mapping[str, Any]]) -> Scored:
        """As the client behind it."""
        return self._client.score(messages, said, tools=tools)
