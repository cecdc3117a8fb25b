"""One version number."""


def identifier_key(identifier):
    """Numbers come before words and are compared as numbers."""
    if identifier.isdigit():
        return (0, int(identifier), "")
    return (1, 0, identifier)


class Version:
    """A parsed version number; `numbers` is (major, minor, patch)."""

    def __init__(self, numbers, pre="", build=""):
        self.numbers = numbers
        self.pre = pre
        self.build = build

    def __str__(self):
        text = ".".join(str(number) for number in self.numbers)
        if self.pre:
            text += "-" + self.pre
        if self.build:
            text += "+" + self.build
        return text

    @property
    def stable(self):
        return not self.pre

    def key(self):
        """What versions are sorted by."""
        if not self.pre:
            return (self.numbers, 1, ())
        return (self.numbers, 0, tuple(identifier_key(part) for part in self.pre.split(".")))


def parse(text):
    """Read a version number; ValueError when it is none."""
    core, _, rest = text.strip().partition("-")
    if rest and "+" not in core:
        pre, _, build = rest.partition("+")
    else:
        pre = ""
        core, _, build = core.partition("+")
    parts = core.split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise ValueError(f"not a version: {text!r}")
    return Version(tuple(int(part) for part in parts), pre, build)
