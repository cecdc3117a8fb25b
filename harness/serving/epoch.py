"""Which start of a server answered: a restart between two sessions, or within one, is to be seen in the records.

A start is named by the first of these that is known:

- the start time of the server's process, as its own metrics give it;
- for a server that we started, when, and its process id;
- `system_fingerprint`, which simulated servers change with every start. vLLM's is a digest of version and
  configuration, equal after a restart, so where it stands in a record nothing better was known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from harness.model.protocol import Completion, Message, ModelClient, Said, Sampling, Scored
from harness.serving.address import Address


def epoch_by_metrics(name: str, root_url: str) -> str | None:
    """Name of the current start of the server at `root_url`; None where it has no metrics that tell."""
    started_at = Address(root_url).started_at()
    if started_at is None:
        return None
    return f"{name}@{datetime.fromtimestamp(started_at, UTC).isoformat(timespec='milliseconds')}"


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
