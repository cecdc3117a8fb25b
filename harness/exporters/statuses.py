"""mini-swe-agent's words for how a rollout ended, and ours."""

from collections.abc import Mapping
from typing import Any

from harness.record import Stop

SUBMITTED = "Submitted"

_STOPS = {
    SUBMITTED: Stop.SUBMITTED,
    "TimeExceeded": Stop.TIME_LIMIT,
    "RepeatedFormatError": Stop.FORMAT_ERRORS,
    "ContextWindowExceededError": Stop.CONTEXT_FULL,
}
_STATUSES = {
    Stop.SUBMITTED: SUBMITTED,
    Stop.CALL_LIMIT: "LimitsExceeded",
    Stop.TOKEN_LIMIT: "LimitsExceeded",
    Stop.COST_LIMIT: "LimitsExceeded",
    Stop.TIME_LIMIT: "TimeExceeded",
    Stop.CONTEXT_FULL: "ContextWindowExceededError",
    Stop.FORMAT_ERRORS: "RepeatedFormatError",
    Stop.BROKEN_OFF: "BrokenOff",
}


def stop_of(status: str, stats: Mapping[str, Any], limits: Mapping[str, Any]) -> Stop:
    """Our stop reason for an exit status. `LimitsExceeded` is one word for two limits: money where `stats` reaches the
    cost limit of `limits` and not the step limit. An exception's name is `broken_off`."""
    if status != "LimitsExceeded":
        return _STOPS.get(status, Stop.BROKEN_OFF)
    return Stop.COST_LIMIT if _out_of_money(stats, limits) else Stop.CALL_LIMIT


def _out_of_money(stats: Mapping[str, Any], limits: Mapping[str, Any]) -> bool:
    calls, step_limit = _amount(stats, "api_calls"), _amount(limits, "step_limit")
    cost, cost_limit = _amount(stats, "instance_cost"), _amount(limits, "cost_limit")
    return 0 < cost_limit <= cost and not 0 < step_limit <= calls


def _amount(section: Mapping[str, Any], key: str) -> float:
    value = section.get(key)
    return value if isinstance(value, int | float) else 0.0


def status_of(stop: Stop) -> str:
    """The exit status under which mini-swe-agent knows `stop`."""
    return _STATUSES[stop]
