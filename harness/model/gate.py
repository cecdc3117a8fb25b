"""How many requests of one family of models are in flight: never more than its cap, fewer while it throttles.

The rule. A refusal that asks to slow down (429, 503) halves the limit to half of what is in flight, down to one; of
the requests that were in flight together only the first refusal does so. After as many answers as the limit is
large it rises by one, up to the cap; without a cap it rises until it no longer binds. A refusal that names a wait
closes the gate until then for every request of the family, so that none is spent on a window known to be closed.
Requests enter in the order in which they came.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class Ticket:
    """One request on its way."""

    in_flight: int = 0
    """Requests of the family in flight when this one was sent, itself included."""
    wave: int = 0
    """How often the limit had been halved by then."""


class Gate:
    """Shared by all clients of one family; threads may share it."""

    def __init__(self, cap: int | None = None) -> None:
        """`cap` None: no more than the callers themselves send."""
        self._cap = math.inf if cap is None else cap
        self._limit = self._cap
        self._lowest = self._cap
        self._flying = self._peak = 0
        self._wave = self._streak = self._refusals = 0
        self._closed_until = 0.0
        self._queue: deque[Ticket] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def request(self) -> Iterator[Ticket]:
        """Wait for a place; leave it at the end."""
        ticket = Ticket()
        with self._changed:
            self._queue.append(ticket)
            try:
                while (pause := self._pause(ticket)) is not None:
                    self._changed.wait(pause)
                self._flying += 1
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
            self._peak = max(self._peak, self._flying)
            ticket.in_flight, ticket.wave = self._flying, self._wave
        try:
            yield ticket
        finally:
            with self._changed:
                self._flying -= 1
                self._changed.notify_all()

    def _pause(self, ticket: Ticket) -> float | None:
        """Seconds after which to look again, if nothing happens before; None when `ticket` may go."""
        if self._queue[0] is not ticket or self._flying >= self._limit:
            return 60.0
        left = self._closed_until - time.monotonic()
        return left if left > 0 else None

    def refused(self, ticket: Ticket, wait: float | None) -> None:
        """The server asked to slow down; `wait` is what it named, in seconds."""
        with self._changed:
            self._refusals += 1
            self._streak = 0
            if wait:
                self._closed_until = max(self._closed_until, time.monotonic() + wait)
            if ticket.wave == self._wave:
                self._wave += 1
                self._limit = max(1, min(self._limit, self._flying) // 2)
                self._lowest = min(self._lowest, self._limit)

    def answered(self) -> None:
        """A request was answered."""
        with self._changed:
            self._streak += 1
            if self._streak >= self._limit and self._limit < self._cap:
                self._limit, self._streak = self._limit + 1, 0
                self._changed.notify_all()

    def waiting(self) -> int:
        """Requests that have no place yet."""
        with self._changed:
            return len(self._queue)

    def facts(self) -> dict[str, object]:
        """What a manifest should say: cap, most in flight at once, lowest limit, refusals that asked to slow down."""
        with self._changed:
            return {
                "cap": _number(self._cap),
                "peak_in_flight": self._peak,
                "lowest_limit": _number(self._lowest),
                "refusals": self._refusals,
            }


def _number(limit: float) -> int | None:
    return None if limit == math.inf else int(limit)
