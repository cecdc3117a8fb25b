from patience import Busy, Policy, call, planned_waits


class Flaky:
    """Fails so many times, then returns "done"."""

    def __init__(self, failures, retry_after=None):
        self.left = failures
        self.retry_after = retry_after

    def __call__(self):
        if self.left:
            self.left -= 1
            raise Busy(retry_after=self.retry_after)
        return "done"


def test_waits_grow_up_to_the_cap():
    assert planned_waits(Policy(base=1, factor=3, cap=20, attempts=6)) == [1, 3, 9, 20, 20]


def test_call_waits_between_attempts():
    slept = []
    assert call(Policy(), Flaky(3), slept.append) == "done"
    assert slept == [1, 2, 4]


def test_attempts_are_limited():
    slept = []
    try:
        call(Policy(attempts=3), Flaky(3), slept.append)
    except Busy:
        assert slept == [1, 2]
        return
    assert False, "a fourth attempt was made"


def test_budget_limits_the_waits():
    assert planned_waits(Policy(attempts=10, budget=8)) == [1, 2, 4]


def test_hint_makes_the_wait_longer():
    slept = []
    assert call(Policy(cap=5), Flaky(2, retry_after=9), slept.append) == "done"
    assert slept == [9, 9]


def test_policy_is_reused_after_failures():
    policy = Policy()
    for _ in range(2):
        slept = []
        assert call(policy, Flaky(2), slept.append) == "done"
        assert slept == [1, 2]
