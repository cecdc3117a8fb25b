"""Doing the work."""


class Busy(Exception):
    """Raised by the work when another attempt makes sense."""

    def __init__(self, message="busy", retry_after=None):
        super().__init__(message)
        self.retry_after = retry_after


def call(policy, work, sleep):
    """The result of `work()`, tried as often as the policy allows.

    When the policy gives up, the last Busy is raised. Other exceptions pass at once.
    """
    waits = policy.start()
    while True:
        try:
            return work()
        except Busy as busy:
            wait = waits.next_wait(busy.retry_after)
            if wait is None:
                raise
        sleep(wait)


def planned_waits(policy):
    """The waits of a call that fails all the time without hints."""
    waits = policy.start()
    planned = []
    while True:
        wait = waits.next_wait()
        if wait is None:
            return planned
        planned.append(wait)
