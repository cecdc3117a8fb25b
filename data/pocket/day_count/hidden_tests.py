from almanac import add_days, days_between, from_number, to_number, weekday


def test_last_day_of_a_leap_year():
    assert add_days((2024, 12, 30), 1) == (2024, 12, 31)
    assert add_days((2025, 1, 1), -1) == (2024, 12, 31)


def test_last_day_of_a_leap_century():
    assert add_days((2000, 12, 30), 1) == (2000, 12, 31)
    assert from_number(to_number((400, 12, 31))) == (400, 12, 31)


def test_year_ends_round_trip():
    for year in [1, 3, 4, 5, 99, 100, 101, 396, 400, 401, 1600, 1700, 1999, 2000, 2028, 2100, 2400]:
        for date in [(year, 12, 30), (year, 12, 31), (year, 1, 1)]:
            assert from_number(to_number(date)) == date


def test_plain_years_around_the_end():
    assert add_days((2023, 12, 31), 1) == (2024, 1, 1)
    assert add_days((2022, 12, 31), 0) == (2022, 12, 31)


def test_plain_century_years():
    assert add_days((1900, 2, 28), 1) == (1900, 3, 1)
    assert add_days((1900, 12, 31), 1) == (1901, 1, 1)
    assert from_number(to_number((2100, 12, 31))) == (2100, 12, 31)


def test_long_spans():
    assert days_between((1600, 1, 1), (2000, 1, 1)) == 146097
    assert add_days((1600, 1, 1), 146097) == (2000, 1, 1)
    assert weekday((2400, 1, 1)) == weekday((2000, 1, 1))


def test_before_the_first_year():
    try:
        add_days((1, 1, 1), -1)
    except ValueError:
        return
    raise AssertionError("no ValueError")
