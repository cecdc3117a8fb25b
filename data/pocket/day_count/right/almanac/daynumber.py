"""Dates of the Gregorian calendar as day numbers; 1 January of the year 1 is day 0."""

DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

YEAR = 365
FOUR_YEARS = 4 * YEAR + 1
CENTURY = 25 * FOUR_YEARS - 1
FOUR_CENTURIES = 4 * CENTURY + 1


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def month_length(year, month):
    return 29 if month == 2 and is_leap(year) else DAYS[month - 1]


def to_number(date):
    """Day number of a (year, month, day) tuple; ValueError when there is no such day."""
    year, month, day = date
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= month_length(year, month):
        raise ValueError(f"no such day: {year}-{month}-{day}")
    past = year - 1
    number = past * YEAR + past // 4 - past // 100 + past // 400
    for earlier in range(1, month):
        number += month_length(year, earlier)
    return number + day - 1


def from_number(number):
    """The (year, month, day) tuple of a day number."""
    if number < 0:
        raise ValueError("before the year 1")
    cycles, rest = divmod(number, FOUR_CENTURIES)
    # The last century of a cycle and the last year of four are one day longer than the others.
    centuries = min(rest // CENTURY, 3)
    rest -= centuries * CENTURY
    fours, rest = divmod(rest, FOUR_YEARS)
    years = min(rest // YEAR, 3)
    rest -= years * YEAR
    year = 400 * cycles + 100 * centuries + 4 * fours + years + 1
    month = 1
    while rest >= month_length(year, month):
        rest -= month_length(year, month)
        month += 1
    return year, month, rest + 1
