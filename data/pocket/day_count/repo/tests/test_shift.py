from almanac import add_days, days_between, weekday


def test_over_the_end_of_a_month():
    assert add_days((2024, 2, 28), 2) == (2024, 3, 1)
    assert add_days((2023, 3, 1), -1) == (2023, 2, 28)


def test_over_the_end_of_a_year():
    assert add_days((2023, 12, 30), 3) == (2024, 1, 2)


def test_days_between():
    assert days_between((2024, 1, 1), (2025, 1, 1)) == 366
    assert days_between((2024, 1, 1), (2023, 1, 1)) == -365


def test_weekday():
    assert weekday((2024, 2, 29)) == "Thu"
    assert weekday((2000, 1, 1)) == "Sat"
