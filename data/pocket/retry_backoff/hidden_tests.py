from patience import Busy, Policy, call, planned_waits


def busy_times(count, result="done", retry_after=None):
    left = [count]

    def work():
        if left[0]:
            left[0] -= 1
            raise Busy(retry_after=retry_after)
        return result

    return work


def test_budget_is_whole_for_every_call():
    policy = Policy(base=2, budget=7)
    for _ in range(5):
        slept = []
        assert call(policy, busy_times(2), slept.append) == "done"
        assert slept == [2, 4]
    assert planned_waits(policy) == [2, 4]
    assert planned_waits(policy) == [2, 4]


def test_inner_call_leaves_outer_attempts():
    policy = Policy(attempts=4)
    slept = []
    runs = []

    def upload():
        assert call(policy, busy_times(0, "token"), slept.append) == "token"
        runs.append("upload")
        if len(runs) > 20:
            return "no end"
        raise Busy()

    try:
        call(policy, upload, slept.append)
    except Busy:
        assert len(runs) == 4
        assert slept == [1, 2, 4]
        return
    assert False, "the outer call did not give up"


def test_inner_waits_leave_outer_budget():
    policy = Policy(base=1, factor=2, attempts=5, budget=3)
    slept = []
    outer = busy_times(2, "uploaded")

    def upload():
        assert call(policy, busy_times(2, "token"), slept.append) == "token"
        return outer()

    assert call(policy, upload, slept.append) == "uploaded"
    assert slept == [1, 2, 1, 1, 2, 2, 1, 2]


def test_call_made_while_waiting():
    policy = Policy(attempts=4, budget=7)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        assert planned_waits(policy) == [1, 2, 4]
        assert call(policy, busy_times(1, "ping"), slept.append) == "ping"

    assert call(policy, busy_times(3), sleep) == "done"
    assert slept == [1, 1, 2, 1, 4, 1]


def test_hint_counts_in_the_budget():
    slept = []
    try:
        call(Policy(budget=10), busy_times(2, retry_after=6), slept.append)
    except Busy:
        assert slept == [6]
        return
    assert False, "waited longer than the budget"


def test_other_errors_pass_at_once():
    def work():
        raise KeyError("lost")

    slept = []
    try:
        call(Policy(), work, slept.append)
    except KeyError:
        assert slept == []
        return
    assert False, "the error was lost"


def test_single_attempt_never_waits():
    assert planned_waits(Policy(attempts=1)) == []


def test_planned_waits_without_budget_repeat():
    policy = Policy(base=5, factor=1, attempts=3)
    assert planned_waits(policy) == [5, 5]
    assert planned_waits(policy) == [5, 5]
