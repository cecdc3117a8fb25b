"""Times as logs write them, read as UTC: ISO 8601 text, or numbers of seconds or milliseconds since 1970.

A time without a zone is taken as UTC and flagged: whether that is right, only its writer knows.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

MILLISECONDS_FROM = 1e11
"""A larger number counts milliseconds: as seconds it would lie beyond the year 5000."""


@dataclass(frozen=True)
class Moment:
    """A point in time."""

    utc: datetime
    naive: bool = False
    """True: the log gave no zone."""


def read_moment(value: object) -> Moment | None:
    """The time that `value` says; None when it says none that can be read."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return _from_number(float(value))
    return _from_text(value) if isinstance(value, str) else None


def _from_number(value: float) -> Moment | None:
    seconds = value / 1000 if abs(value) >= MILLISECONDS_FROM else value
    try:
        return Moment(datetime.fromtimestamp(seconds, UTC))
    except (OverflowError, ValueError, OSError):  # not a time: infinite, not a number, beyond the year 9999
        return None


def _from_text(value: str) -> Moment | None:
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return None
    naive = read.tzinfo is None
    return Moment(read.replace(tzinfo=UTC) if naive else read.astimezone(UTC), naive)


def seconds_between(start: Moment | None, end: Moment | None) -> tuple[float | None, bool]:
    """Seconds from `start` to `end`, None where one is missing; and whether one of the two had no zone."""
    if start is None or end is None:
        return None, False
    return (end.utc - start.utc).total_seconds(), start.naive or end.naive
