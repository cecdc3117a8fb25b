"""Reduce a unit expression to one factor and its dimensions, and convert between two of them."""

from measures.table import PREFIXES, UNITS, split_prefix


class UnitError(ValueError):
    """An unknown unit, or two units that measure different things."""


def reduce_term(text, sign):
    """Factor and dimensions of one term, such as km or s^2; sign is -1 below a slash."""
    name, caret, digits = text.partition("^")
    found = split_prefix(name)
    if found is None or (caret and not digits.isdigit()):
        raise UnitError(f"cannot read unit {text!r}")
    prefix, unit = found
    power = sign * int(digits or 1)
    scale, dimensions = UNITS[unit]
    factor = (PREFIXES[prefix] * scale) ** power
    return factor, {name: count * power for name, count in dimensions.items()}


def reduce(expression):
    """Factor to SI base units and dimensions of an expression: terms joined by * and /."""
    factor = 1.0
    total = {}
    for index, group in enumerate(expression.replace(" ", "").split("/")):
        for position, text in enumerate(group.split("*")):
            sign = -1 if index and position == 0 else 1
            one, dimensions = reduce_term(text, sign)
            factor *= one
            for name, count in dimensions.items():
                total[name] = total.get(name, 0) + count
    return factor, {name: count for name, count in total.items() if count}


def convert(value, source, target):
    """Return value, given in source units, expressed in target units."""
    source_factor, source_dimensions = reduce(source)
    target_factor, target_dimensions = reduce(target)
    if source_dimensions != target_dimensions:
        raise UnitError(f"{source} and {target} do not measure the same thing")
    return value * source_factor / target_factor
