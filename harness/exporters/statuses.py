"""How rollouts end in mini-swe-agent's words and in ours, with what only a whole log can say beside the word."""

from collections.abc import Mapping
from typing import Any

from harness.record import Stop
from harness.scaffold import exits

SUBMITTED = exits.exit_status_of(Stop.SUBMITTED)


def stop_of(status: str, stats: Mapping[str, Any], limits: Mapping[str, Any]) -> Stop:
    """Our stop reason for the exit status of a log.

    A limit that was exceeded is that on money where `stats` reaches the cost limit of `limits` and not the step limit.
    An exception's name, which is no stop reason for a run of ours, is one for a log: its rollout was broken off.
    """
    stop = exits.stop_of(status)
    if stop is Stop.CALL_LIMIT and _out_of_money(stats, limits):
        return Stop.COST_LIMIT
    return Stop.BROKEN_OFF if stop is None else stop


def _out_of_money(stats: Mapping[str, Any], limits: Mapping[str, Any]) -> bool:
    calls, step_limit = _amount(stats, "api_calls"), _amount(limits, "step_limit")
    cost, cost_limit = _amount(stats, "instance_cost"), _amount(limits, "cost_limit")
    return 0 < cost_limit <= cost and not 0 < step_limit <= calls


def _amount(section: Mapping[str, Any], key: str) -> float:
    value = section.get(key)
    return value if isinstance(value, int | float) else 0.0


def status_of(stop: Stop) -> str:
    """The exit status under which mini-swe-agent knows `stop`. An imported rollout has its own word for it."""
    return exits.exit_status_of(stop)
