from dayplan import busy_minutes, merge, parse_span


def test_parse_span():
    assert parse_span("09:30-11:00") == (570, 660)


def test_merge_joins_overlapping():
    assert merge([(540, 600), (570, 630)]) == [(540, 630)]


def test_merge_joins_touching():
    assert merge([(600, 660), (540, 600)]) == [(540, 660)]


def test_merge_keeps_apart():
    assert merge([(700, 720), (540, 600)]) == [(540, 600), (700, 720)]


def test_busy_minutes_counts_once():
    assert busy_minutes([(540, 600), (570, 630), (700, 720)]) == 110
