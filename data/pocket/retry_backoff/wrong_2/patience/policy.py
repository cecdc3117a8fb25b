"""How often to try, and how long to wait in between."""


class Policy:
    """Waits of base, base * factor, base * factor ** 2 ... seconds, none above `cap`.

    A call makes at most `attempts` attempts. With a `budget`, it gives up rather than wait
    longer than that in total.
    """

    def __init__(self, base=1, factor=2, cap=60, attempts=5, budget=None):
        if attempts < 1:
            raise ValueError("at least one attempt is needed")
        self.base = base
        self.factor = factor
        self.cap = cap
        self.attempts = attempts
        self.budget = budget
        self.failures = 0
        self.waited = 0

    def growing_wait(self, failures):
        """The wait after so many failures, before hints and the budget are looked at."""
        return min(self.base * self.factor ** (failures - 1), self.cap)

    def start(self):
        """Begin a call; returns the object that is asked for its waits."""
        self.failures = 0
        self.waited = 0
        return self

    def next_wait(self, hint=None):
        """Note one failure; returns the seconds to wait now, or None to give up.

        `hint` is the least wait that the other side asked for; it may exceed the cap.
        """
        self.failures += 1
        if self.failures >= self.attempts:
            return None
        wait = self.growing_wait(self.failures)
        if hint is not None:
            wait = max(wait, hint)
        if self.budget is not None and self.waited + wait > self.budget:
            return None
        self.waited += wait
        return wait
