"""A request is named by a digest of its messages, tools and sampling; the seed is not a part of the name.

The seed that goes with it is derived from study, fork, arm, replicate and step, so digest and seed together name one
call of one run: a cassette keyed by both is keyed by arm and replicate.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.model.protocol import Message, Sampling


class RequestDigest:
    """Grows with a conversation, so that the cost of a step does not grow with it."""

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def add(self, messages: Sequence[Message]) -> None:
        """The conversation goes on with `messages`."""
        for message in messages:
            self._total.update(_json(message) + b"\n")

    def of(self, tools: Sequence[Mapping[str, Any]], sampling: Sampling) -> str:
        """The name of a request that sends the messages so far with `tools` and `sampling`."""
        total = self._total.copy()
        total.update(_json([list(tools), asdict(sampling)]))
        return total.hexdigest()


def request_digest(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], sampling: Sampling) -> str:
    """The same name from the whole message list."""
    total = RequestDigest()
    total.add(messages)
    return total.of(tools, sampling)


def digest_of_ids(ids: Sequence[int] | None) -> str | None:
    """Names a prompt by its token ids; None for none."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest() if ids else None


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
