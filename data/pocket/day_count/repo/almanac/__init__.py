"""Calendar arithmetic on plain (year, month, day) tuples."""

from almanac.daynumber import from_number, to_number
from almanac.shift import add_days, days_between, weekday

__all__ = ["add_days", "days_between", "from_number", "to_number", "weekday"]
