"""Known units and prefixes. Each unit is a scale to SI base units and its dimensions."""

PREFIXES = {
    "": 1.0,
    "M": 1e6,
    "k": 1e3,
    "c": 1e-2,
    "m": 1e-3,
    "u": 1e-6,
}

UNITS = {
    "m": (1.0, {"length": 1}),
    "ft": (0.3048, {"length": 1}),
    "g": (1e-3, {"mass": 1}),
    "s": (1.0, {"time": 1}),
    "min": (60.0, {"time": 1}),
    "h": (3600.0, {"time": 1}),
    "N": (1.0, {"mass": 1, "length": 1, "time": -2}),
    "Pa": (1.0, {"mass": 1, "length": -1, "time": -2}),
}

PREFIXABLE = ("m", "g", "s", "N", "Pa")


def split_prefix(name):
    """Return (prefix, unit) for a unit name, or None when it is unknown."""
    if name in UNITS:
        return "", name
    prefix, unit = name[:1], name[1:]
    if prefix in PREFIXES and unit in PREFIXABLE:
        return prefix, unit
    return None
