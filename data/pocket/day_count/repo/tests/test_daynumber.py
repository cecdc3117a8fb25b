from almanac import from_number, to_number


def test_first_day():
    assert to_number((1, 1, 1)) == 0
    assert from_number(0) == (1, 1, 1)


def test_round_trip():
    for date in [(1970, 1, 1), (1999, 12, 31), (2000, 2, 29), (2023, 7, 9), (2024, 3, 1)]:
        assert from_number(to_number(date)) == date


def test_no_such_day():
    for date in [(2023, 2, 29), (1900, 2, 29), (2024, 13, 1), (2024, 4, 31)]:
        try:
            to_number(date)
        except ValueError:
            continue
        raise AssertionError("accepted")
