"""One bucket per caller."""

from throttle.bucket import Bucket


class Limiter:
    def __init__(self, capacity, interval, clock):
        self._settings = (capacity, interval, clock)
        self._buckets = {}

    def _bucket(self, caller):
        if caller not in self._buckets:
            self._buckets[caller] = Bucket(*self._settings)
        return self._buckets[caller]

    def allow(self, caller, cost=1):
        """True when the caller may go ahead now; its tokens are then spent."""
        return self._bucket(caller).take(cost)

    def retry_after(self, caller, cost=1):
        """Milliseconds the caller should wait before it asks again."""
        return self._bucket(caller).wait(cost)

    def forget_idle(self):
        """Drop the buckets that are full again, and return how many were dropped."""
        idle = [caller for caller, bucket in self._buckets.items()
                if bucket.available() == bucket.capacity]
        for caller in idle:
            del self._buckets[caller]
        return len(idle)
