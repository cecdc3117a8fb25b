"""A token bucket over an integer millisecond clock."""


class Bucket:
    """Holds up to capacity tokens and gains one every interval milliseconds.

    clock is a function that returns the current time in whole milliseconds.
    """

    def __init__(self, capacity, interval, clock):
        if capacity < 1 or interval < 1:
            raise ValueError("capacity and interval must be positive")
        self.capacity = capacity
        self.interval = interval
        self._clock = clock
        self._tokens = capacity
        self._since = clock()

    def _refill(self):
        now = self._clock()
        gained = (now - self._since) // self.interval
        if gained > 0:
            self._tokens = min(self.capacity, self._tokens + gained)
            self._since = now

    def available(self):
        """Whole tokens in the bucket now."""
        self._refill()
        return self._tokens

    def take(self, count=1):
        """Take count tokens and return True, or take none and return False."""
        self._refill()
        if count > self._tokens:
            return False
        self._tokens -= count
        return True

    def wait(self, count=1):
        """Milliseconds until count tokens are there; 0 when they are there already."""
        if count > self.capacity:
            raise ValueError("more tokens than the bucket can hold")
        self._refill()
        missing = count - self._tokens
        if missing <= 0:
            return 0
        return missing * self.interval - (self._clock() - self._since)
