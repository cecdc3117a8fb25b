from keepsake import BudgetCache, CachedLoader


def test_oldest_entry_is_dropped():
    cache = BudgetCache(6)
    for key in ("a", "b", "c", "d"):
        cache.put(key, "xx")
    assert cache.keys() == ["b", "c", "d"]
    assert cache.used == 6
    assert cache.evicted == 1


def test_reading_counts_as_use():
    cache = BudgetCache(4)
    cache.put("a", "xx")
    cache.put("b", "yy")
    assert cache.get("a") == "xx"
    cache.put("c", "zz")
    assert cache.keys() == ["a", "c"]


def test_new_value_replaces_old():
    cache = BudgetCache(10)
    cache.put("a", "old")
    cache.put("a", "new")
    assert cache.get("a") == "new"
    assert len(cache) == 1


def test_too_large_is_not_stored():
    cache = BudgetCache(3)
    assert cache.put("a", "four") is False
    assert "a" not in cache


def test_loader_loads_once():
    loader = CachedLoader(lambda key: key * 2, budget=20)
    assert loader.read("ab") == "abab"
    assert loader.read("ab") == "abab"
    assert loader.loads == 1
