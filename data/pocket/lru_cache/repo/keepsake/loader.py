"""Reading through the cache."""

from keepsake.cache import BudgetCache

MISSING = object()


class CachedLoader:
    """Calls `load(key)` for what is not in the cache."""

    def __init__(self, load, budget):
        self.load = load
        self.cache = BudgetCache(budget)
        self.loads = 0

    def read(self, key):
        value = self.cache.get(key, MISSING)
        if value is MISSING:
            value = self.refresh(key)
        return value

    def refresh(self, key):
        """Load the value again, whatever the cache holds."""
        value = self.load(key)
        self.loads += 1
        self.cache.put(key, value)
        return value
