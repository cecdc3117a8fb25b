from dayplan import busy_minutes, free_slots, longest_slot, merge


def test_span_inside_another():
    assert merge([(540, 720), (570, 600)]) == [(540, 720)]
    assert merge([(570, 600), (540, 720)]) == [(540, 720)]


def test_same_start_longer_first():
    assert merge([(540, 720), (540, 600)]) == [(540, 720)]
    assert merge([(540, 600), (540, 720)]) == [(540, 720)]


def test_several_inside_one():
    busy = [(540, 720), (550, 560), (600, 640), (630, 650), (800, 830)]
    assert merge(busy) == [(540, 720), (800, 830)]
    assert busy_minutes(busy) == 210


def test_no_free_slot_inside_long_meeting():
    busy = [(600, 900), (660, 690), (700, 710)]
    assert free_slots(busy, 540, 1020) == [(540, 600), (900, 1020)]
    assert longest_slot(busy, 540, 1020) == (900, 1020)


def test_same_end():
    assert merge([(540, 720), (600, 720)]) == [(540, 720)]


def test_chain_of_overlaps():
    assert merge([(30, 50), (0, 20), (10, 40)]) == [(0, 50)]


def test_input_is_left_alone():
    spans = [(700, 720), (540, 600)]
    merge(spans)
    assert spans == [(700, 720), (540, 600)]


def test_meeting_across_opening():
    assert free_slots([(500, 560), (1000, 1100)], 540, 1020) == [(560, 1000)]
