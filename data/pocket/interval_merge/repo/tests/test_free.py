from dayplan import free_slots, longest_slot


def test_gaps_between_meetings():
    busy = [(600, 660), (720, 780)]
    assert free_slots(busy, 540, 1020) == [(540, 600), (660, 720), (780, 1020)]


def test_short_gaps_are_left_out():
    assert free_slots([(560, 600)], 540, 1020, at_least=30) == [(600, 1020)]


def test_longest_slot():
    assert longest_slot([(600, 660), (720, 780)], 540, 1020) == (780, 1020)
    assert longest_slot([(0, 1440)], 540, 1020) is None
