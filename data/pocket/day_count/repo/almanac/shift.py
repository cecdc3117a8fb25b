"""Moving along the calendar."""

from almanac.daynumber import from_number, to_number

NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def add_days(date, count):
    """The date count days later, or earlier when count is negative."""
    return from_number(to_number(date) + count)


def days_between(first, last):
    """Days from first to last; negative when last comes first."""
    return to_number(last) - to_number(first)


def weekday(date):
    """Short name of the day of the week."""
    return NAMES[to_number(date) % 7]
