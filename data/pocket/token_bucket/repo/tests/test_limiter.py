from throttle import Limiter


def test_callers_do_not_share_tokens():
    limiter = Limiter(1, 1000, lambda: 0)
    assert limiter.allow("ann")
    assert limiter.allow("bob")
    assert not limiter.allow("ann")


def test_full_buckets_are_forgotten():
    limiter = Limiter(2, 1000, lambda: 0)
    limiter.allow("ann")
    limiter.retry_after("bob")
    assert limiter.forget_idle() == 1
