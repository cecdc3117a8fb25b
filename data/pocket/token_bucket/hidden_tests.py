from throttle import Bucket, Limiter


class Clock:
    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


def test_polling_gets_the_full_rate():
    clock = Clock()
    limiter = Limiter(2, 1000, clock)
    granted = []
    for clock.now in range(0, 10001, 300):
        if limiter.allow("ann"):
            granted.append(clock.now)
    assert granted == [0, 300, 1200, 2100, 3000, 4200, 5100, 6000, 7200, 8100, 9000]


def test_retry_after_counts_down():
    clock = Clock()
    limiter = Limiter(2, 1000, clock)
    limiter.allow("ann", 2)
    waits = []
    for clock.now in (0, 250, 900, 999, 1000, 1400):
        waits.append(limiter.retry_after("ann", 2))
    assert waits == [2000, 1750, 1100, 1001, 1000, 600]


def test_looking_does_not_delay_the_next_token():
    clock = Clock()
    bucket = Bucket(5, 1000, clock)
    bucket.take(5)
    seen = []
    for clock.now in (999, 1500, 2000, 2999, 3000):
        seen.append(bucket.available())
    assert seen == [0, 1, 2, 2, 3]


def test_full_bucket_saves_no_time():
    clock = Clock()
    bucket = Bucket(1, 1000, clock)
    clock.now = 900
    assert bucket.take()
    clock.now = 1899
    assert not bucket.take()


def test_long_idle_time_fills_up_once():
    clock = Clock()
    bucket = Bucket(2, 1000, clock)
    bucket.take(2)
    clock.now = 10500
    assert bucket.take(2)
    clock.now = 11499
    assert bucket.available() == 0
    assert not bucket.take()


def test_refused_call_takes_nothing():
    bucket = Bucket(3, 1000, Clock())
    assert not bucket.take(4)
    assert bucket.available() == 3


def test_wait_beyond_capacity_is_an_error():
    try:
        Bucket(3, 1000, Clock()).wait(4)
    except ValueError:
        return
    raise AssertionError("no ValueError")
