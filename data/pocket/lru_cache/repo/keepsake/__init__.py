"""A cache that drops what was not used lately."""

from keepsake.cache import BudgetCache
from keepsake.loader import CachedLoader

__all__ = ["BudgetCache", "CachedLoader"]
