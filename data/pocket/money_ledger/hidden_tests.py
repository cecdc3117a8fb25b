from tally import Ledger, allocate


def test_equal_refund_mirrors_charge():
    for cents in (1, 2, 100, 1000, 1001):
        assert allocate(-cents, [1, 1, 1]) == [-share for share in allocate(cents, [1, 1, 1])]


def test_weighted_refund_mirrors_charge():
    assert allocate(102, [1, 1, 2]) == [26, 25, 51]
    assert allocate(-102, [1, 1, 2]) == [-26, -25, -51]
    assert allocate(-1003, [3, 2, 5]) == [-share for share in allocate(1003, [3, 2, 5])]


def test_refund_skips_weight_zero():
    assert allocate(-5, [0, 1, 1]) == [0, -3, -2]
    assert allocate(-7, [1, 0, 1, 0]) == [-4, 0, -3, 0]


def test_ledger_is_clear_after_refund():
    ledger = Ledger(["ann", "bob", "cy", "dee"])
    shared = {"dee": 1, "ann": 1, "cy": 2}
    ledger.post("boat", "88.86", shared)
    ledger.post("boat refunded", "-88.86", shared)
    assert ledger.statement() == ["ann 0.00", "bob 0.00", "cy 0.00", "dee 0.00"]


def test_charge_with_weights():
    assert allocate(1000, [1, 2, 4]) == [143, 286, 571]
    assert allocate(0, [1, 2]) == [0, 0]


def test_charge_skips_weight_zero():
    assert allocate(5, [0, 1, 1]) == [0, 3, 2]


def test_refund_adds_up():
    for cents in range(-40, 0):
        assert sum(allocate(cents, [1, 1, 2, 3])) == cents


def test_bad_weights_are_refused():
    for weights in ([], [0, 0], [2, -1]):
        try:
            allocate(100, weights)
        except ValueError:
            continue
        assert False, "bad weights were taken"
