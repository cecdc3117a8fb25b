"""The cache itself: entries in order of use, oldest first."""


class BudgetCache:
    """Keeps entries as long as their costs fit into `budget`."""

    def __init__(self, budget, cost=len):
        if budget <= 0:
            raise ValueError("the budget must be positive")
        self.budget = budget
        self.cost = cost
        self.used = 0
        self.evicted = 0
        self._entries = {}

    def __len__(self):
        return len(self._entries)

    def __contains__(self, key):
        return key in self._entries

    def keys(self):
        """All keys, the one to be dropped first in front."""
        return list(self._entries)

    def get(self, key, default=None):
        """The value of `key`, which counts as used now."""
        if key not in self._entries:
            return default
        value = self._entries.pop(key)
        self._entries[key] = value
        return value

    def put(self, key, value):
        """Store a value; False when it alone is over the budget and was not stored."""
        cost = self.cost(value)
        if cost > self.budget:
            self.discard(key)
            return False
        known = self._entries.pop(key, None) is not None
        self._entries[key] = value
        if not known:
            self.used += cost
        self._shrink()
        return True

    def discard(self, key):
        """Forget an entry if it is there."""
        if key in self._entries:
            self.used -= self.cost(self._entries.pop(key))

    def _shrink(self):
        while self.used > self.budget and self._entries:
            self.discard(next(iter(self._entries)))
            self.evicted += 1
