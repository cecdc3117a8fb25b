from throttle import Bucket


class Clock:
    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


def test_starts_full_and_runs_dry():
    bucket = Bucket(2, 1000, Clock())
    assert [bucket.take() for _ in range(3)] == [True, True, False]


def test_refills_one_token_an_interval():
    clock = Clock()
    bucket = Bucket(3, 1000, clock)
    bucket.take(3)
    clock.now = 2000
    assert bucket.available() == 2


def test_never_holds_more_than_capacity():
    clock = Clock()
    bucket = Bucket(3, 1000, clock)
    clock.now = 60000
    assert bucket.available() == 3


def test_wait_for_several_tokens():
    bucket = Bucket(3, 1000, Clock())
    bucket.take(2)
    assert bucket.wait(1) == 0
    assert bucket.wait(3) == 2000
