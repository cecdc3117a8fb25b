"""mini-swe-agent's exit statuses and our stop reasons: the one place that maps them.

An exit status is one of five words or the name of an exception class. Only one exception is a way for a rollout to
end, the context that is full; every other one is infrastructure, and that is no stop reason.
"""

from harness.record import Stop

_STATUS = {
    Stop.SUBMITTED: "Submitted",
    Stop.CALL_LIMIT: "LimitsExceeded",
    Stop.TIME_LIMIT: "TimeExceeded",
    Stop.FORMAT_ERRORS: "RepeatedFormatError",
    Stop.CONTEXT_FULL: "ContextWindowExceededError",
    Stop.TOKEN_LIMIT: "LimitsExceeded",  # mini-swe-agent has no such limit
}
_STOP = {status: stop for stop, status in _STATUS.items() if stop is not Stop.TOKEN_LIMIT}


def stop_of(exit_status: str) -> Stop | None:
    """The stop reason; None: the rollout did not end, or infrastructure ended it.

    LimitsExceeded is said of calls and of money alike; it is read as the limit on calls.
    """
    return _STOP.get(exit_status)


def exit_status_of(stop: Stop) -> str:
    """The exit status."""
    return _STATUS[stop]
