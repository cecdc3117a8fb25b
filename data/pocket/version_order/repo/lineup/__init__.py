"""Version numbers in order."""

from lineup.choose import in_order, newest
from lineup.version import Version, parse

__all__ = ["Version", "in_order", "newest", "parse"]
