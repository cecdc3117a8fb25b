from keepsake import BudgetCache, CachedLoader


def test_rewriting_keeps_used_right():
    cache = BudgetCache(10)
    for _ in range(20):
        cache.put("a", "abc")
    assert cache.used == 3
    assert cache.evicted == 0


def test_longer_value_is_counted():
    cache = BudgetCache(10)
    cache.put("a", "x")
    cache.put("b", "yyy")
    cache.put("b", "yyyyyyyyy")
    assert cache.used == 10
    cache.put("c", "z")
    assert cache.keys() == ["b", "c"]
    assert cache.used == 10


def test_shorter_value_frees_budget():
    cache = BudgetCache(10)
    cache.put("a", "xxxxxxxx")
    cache.put("a", "xx")
    cache.put("b", "yyyyyyyy")
    assert cache.keys() == ["a", "b"]
    assert cache.used == 10


def test_refreshing_loader_keeps_others():
    loader = CachedLoader(lambda key: key * 3, budget=9)
    loader.read("a")
    for _ in range(5):
        loader.refresh("b")
    assert loader.cache.keys() == ["a", "b"]
    assert loader.cache.used == 6


def test_rewriting_counts_as_use():
    cache = BudgetCache(10)
    cache.put("a", "x")
    cache.put("b", "y")
    cache.put("a", "z")
    assert cache.keys() == ["b", "a"]


def test_discard_gives_budget_back():
    cache = BudgetCache(4)
    cache.put("a", "xxxx")
    cache.discard("a")
    cache.discard("never there")
    assert cache.used == 0
    assert cache.put("b", "yyyy") is True


def test_too_large_value_drops_old_one():
    cache = BudgetCache(4)
    cache.put("a", "xx")
    assert cache.put("a", "xxxxx") is False
    assert len(cache) == 0
    assert cache.used == 0


def test_own_cost_function():
    cache = BudgetCache(2, cost=lambda value: 1)
    for key in ("a", "b", "c"):
        cache.put(key, "a long value")
    assert cache.keys() == ["b", "c"]
