"""Trouble with a server is passing or malformed, and patience with either is bounded, by one rule for every arm.

Waiting: where the server names a time, that time and at most `first_wait_seconds` more. Else a back-off that doubles
from `first_wait_seconds` up to `longest_backoff_seconds`, of which a draw takes between half and all. The draw comes
from the request's seed and the number of the attempt, so that requests refused together do not come back together.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from harness.errors import ModelError
from harness.record import seed_for


@dataclass(frozen=True)
class Patience:
    """How long a client waits before it gives up."""

    request_seconds: float = 600.0
    """For one attempt, from connecting to the last byte of the answer."""
    passing_attempts: int = 8
    malformed_attempts: int = 3
    first_wait_seconds: float = 0.5
    longest_backoff_seconds: float = 60.0
    """Caps the back-off that is the client's own."""
    longest_wait_seconds: float = 120.0
    """Caps what a server names."""
    reply_bytes: int = 64 * 1024 * 1024
    """A longer answer counts as endless."""

    def capped(self, wait: float | None) -> float | None:
        """What of a wait that a server names is waited."""
        return None if wait is None else min(wait, self.longest_wait_seconds)


class Refused(ModelError):
    """The server refuses, and waiting does not mend it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP."""


class Trouble(Exception):
    """Worth another attempt."""


class Passing(Trouble):
    """Likely to pass: the server is busy, starting or gone, or the connection broke."""

    def __init__(self, reason: str, *, wait: float | None = None, throttled: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        """Seconds that the server named; None: it named none."""
        self.throttled = throttled
        """The server asked for fewer requests."""


class Malformed(Trouble):
    """The server answered with something that is no completion, or did not come to an end."""


class Attempts:
    """The attempts at one request."""

    def __init__(self, patience: Patience, seed: int, server: str) -> None:
        self._patience, self._seed, self._server = patience, seed, server
        self.failed = self._malformed = 0

    def wait_after(self, trouble: Trouble) -> float:
        """Seconds to wait before the next attempt; ModelError when patience is over."""
        self.failed += 1
        self._malformed += isinstance(trouble, Malformed)
        if self._malformed >= self._patience.malformed_attempts:
            raise ModelError(f"{self._server}: malformed answer: {trouble} ({self._malformed} times)") from None
        if self.failed >= self._patience.passing_attempts:
            raise ModelError(f"{self._server}: {trouble} ({self.failed} attempts)") from None
        named = trouble.wait if isinstance(trouble, Passing) else None
        return self._wait(self._patience.capped(named))

    def _wait(self, named: float | None) -> float:
        first, longest = self._patience.first_wait_seconds, self._patience.longest_backoff_seconds
        draw = seed_for("wait", self._seed, self.failed) / 2**53
        own = min(first * 2.0 ** min(self.failed - 1, 60), longest) * (1 + draw) / 2
        return own if named is None else max(named + first * draw, own)


def named_wait(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that an answer's headers (names in lower case) ask for; None when they ask for none."""
    precise = _finite(headers.get("retry-after-ms"))
    return retry_after(headers.get("retry-after"), now) if precise is None else max(precise / 1000, 0.0)


def retry_after(header: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for; None when absent or unreadable, never below zero."""
    seconds = _finite(header)
    if seconds is not None:
        return max(seconds, 0.0)
    return None if header is None else _seconds_until(header, now)


def _finite(header: str | None) -> float | None:
    try:
        seconds = math.nan if header is None else float(header)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def _seconds_until(date: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    return max((moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds(), 0.0)
