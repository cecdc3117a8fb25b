"""Amounts as text and as whole cents."""


def parse_cents(text):
    """Turn "12", "12.5", "-0.50" or "+3.07" into a number of cents."""
    body = text.strip()
    negative = body.startswith("-")
    if body[:1] in ("-", "+"):
        body = body[1:]
    whole, dot, fraction = body.partition(".")
    if not whole.isdigit() or (dot and not fraction.isdigit()) or len(fraction) > 2:
        raise ValueError(f"not an amount: {text!r}")
    cents = int(whole) * 100 + int(fraction.ljust(2, "0"))
    return -cents if negative else cents


def format_cents(cents):
    """Turn a number of cents into text with two decimals, such as "-0.50"."""
    sign = "-" if cents < 0 else ""
    whole, fraction = divmod(abs(cents), 100)
    return f"{sign}{whole}.{fraction:02d}"
