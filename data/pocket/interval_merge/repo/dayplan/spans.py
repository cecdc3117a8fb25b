"""Spans of minutes within a day."""


def parse_time(text):
    """Turn "09:30" into minutes since midnight."""
    hours, _, minutes = text.partition(":")
    value = int(hours) * 60 + int(minutes)
    if not 0 <= value <= 24 * 60:
        raise ValueError(f"not a time of day: {text}")
    return value


def parse_span(text):
    """Turn "09:30-11:00" into (570, 660)."""
    start, _, end = text.partition("-")
    span = (parse_time(start), parse_time(end))
    if span[0] >= span[1]:
        raise ValueError(f"span does not end after its start: {text}")
    return span


def merge(spans):
    """Join spans that overlap or touch; the result is in time order.

    The spans may come in any order, and the list given is left as it is.
    """
    merged = []
    for start, end in sorted(spans, key=lambda span: span[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def busy_minutes(spans):
    """Minutes covered by at least one span."""
    return sum(end - start for start, end in merge(spans))
