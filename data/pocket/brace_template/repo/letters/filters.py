"""What may follow a | inside a placeholder."""


def quote(value):
    return '"' + value + '"'


FILTERS = {
    "upper": str.upper,
    "title": str.title,
    "trim": str.strip,
    "quote": quote,
}


def apply(value, names):
    """Run value through the named filters, left to right; KeyError for an unknown one."""
    for name in names:
        value = FILTERS[name.strip()](value)
    return value
