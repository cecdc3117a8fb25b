"""Busy and free time within one day."""

from dayplan.free import free_slots, longest_slot
from dayplan.spans import busy_minutes, merge, parse_span

__all__ = ["busy_minutes", "free_slots", "longest_slot", "merge", "parse_span"]
