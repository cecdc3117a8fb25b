"""Repeat what failed for a passing reason."""

from patience.policy import Policy
from patience.runner import Busy, call, planned_waits

__all__ = ["Busy", "Policy", "call", "planned_waits"]
