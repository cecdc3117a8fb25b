"""Where the noise at temperature 0 comes from, one kind for each diagnostic that has to catch it.

    off            none: the most likely reply
    iid            fresh for every request seed and conversation
    position       only for a call that does not continue a live sequence: a cold start of its prefix. A sequence
                   is live from its call until the next call continues it, so a branch starts cold and goes on warm
    batch_shared   one draw for all requests that are in flight together, whatever they ask
    server_sticky  fixed for a conversation until the server restarts: one draw per epoch

At a temperature above 0 the request's seed decides and none of this applies.
"""

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from harness.errors import ConfigError

Kind = Literal["off", "iid", "position", "batch_shared", "server_sticky"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_LIVE_SEQUENCES = 50_000  # oldest are forgotten first: a server's memory is bounded


def kind(name: str) -> Kind:
    """`name` as a kind of noise; ConfigError when there is none of that name."""
    for known in KINDS:
        if name == known:
            return known
    raise ConfigError(f"no noise {name!r}; there are: {', '.join(KINDS)}")


@dataclass(frozen=True)
class Call:
    """What the noise of one call may depend on."""

    seed: int
    digest: bytes
    """Of the conversation."""
    batch: int
    """Number of the batch in which the request is in flight."""
    cold: bool
    """It does not continue a live sequence."""


def gumbel(key: bytes, entry: str) -> float:
    """A standard Gumbel draw that `key` and `entry` decide."""
    digest = hashlib.blake2b(entry.encode(), digest_size=8, key=key).digest()
    uniform = ((int.from_bytes(digest, "big") >> 11) + 0.5) * 2.0**-53
    return -math.log(-math.log(uniform))


def _key(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=32).digest()


class Noise:
    """One server's noise: its kind, its epoch, and what is in flight and live now."""

    def __init__(self, kind: Kind, epoch: str) -> None:
        self.kind, self.epoch = kind, epoch
        self._lock = threading.Lock()
        self._in_flight = 0
        self._batch = 0
        self._live: OrderedDict[bytes, int] = OrderedDict()

    @contextmanager
    def in_flight(self) -> Iterator[int]:
        """The number of the batch that a request joins; a batch ends when nothing is in flight."""
        with self._lock:
            if not self._in_flight:
                self._batch += 1
            self._in_flight += 1
            batch = self._batch
        try:
            yield batch
        finally:
            with self._lock:
                self._in_flight -= 1

    def is_cold(self, parent: bytes | None, digest: bytes) -> bool:
        """Whether no live sequence at `parent` is continued by this call; makes one live at `digest`."""
        with self._lock:
            waiting = self._live.get(parent, 0) if parent is not None else 0
            if parent is not None and waiting > 1:
                self._live[parent] = waiting - 1
            elif parent is not None and waiting:
                del self._live[parent]
            self._live[digest] = self._live.get(digest, 0) + 1
            if len(self._live) > _LIVE_SEQUENCES:
                self._live.popitem(last=False)
        return not waiting

    def forget(self) -> None:
        """No sequence is live any more: the next call of each is cold."""
        with self._lock:
            self._live.clear()

    def scale(self, sigma: float, call: Call) -> float:
        """The scale of the noise of this call at temperature 0."""
        silent = self.kind == "off" or (self.kind == "position" and not call.cold)
        return 0.0 if silent else sigma

    def key(self, call: Call, span: str) -> bytes:
        """What decides the draws of one span at temperature 0."""
        if self.kind == "batch_shared":
            return _key("batch", self.epoch, call.batch, span)
        if self.kind == "server_sticky":
            return _key("epoch", self.epoch, call.digest, span)
        return seeded_key(call, span)


def seeded_key(call: Call, span: str) -> bytes:
    """What decides the draws of one span wherever the request's seed does."""
    return _key("seed", call.seed, call.digest, span)
