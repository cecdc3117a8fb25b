"""Look values up through the inheritance chain and expand ${references}."""

from layerconf.parser import ConfigError, parse


class Config:
    def __init__(self, text):
        self._sections = parse(text)

    def lineage(self, name):
        """Section names to search for a key: the section itself, then its parents, depth first."""
        order = []
        self._walk(name, order)
        return order

    def _walk(self, name, order):
        if name not in self._sections:
            raise ConfigError(f"no section [{name}]")
        if name in order:
            return
        order.append(name)
        for parent in self._sections[name].parents:
            self._walk(parent, order)

    def get(self, section, key):
        """The expanded value of key as seen from section."""
        return self._lookup(section, key, ())

    def items(self, section):
        """All keys visible from section, own and inherited, with expanded values."""
        merged = {}
        for name in reversed(self.lineage(section)):
            for key, raw in self._sections[name].values.items():
                merged[key] = self._expand(name, raw, (key,))
        return merged

    def _lookup(self, section, key, trail):
        if key in trail:
            raise ConfigError(f"{key} refers to itself")
        for name in self.lineage(section):
            values = self._sections[name].values
            if key in values:
                return self._expand(name, values[key], trail + (key,))
        raise ConfigError(f"no key {key} in [{section}]")

    def _expand(self, section, raw, trail):
        pieces = []
        rest = raw
        while "${" in rest:
            before, _, rest = rest.partition("${")
            reference, closed, rest = rest.partition("}")
            if not closed:
                raise ConfigError(f"unclosed reference in [{section}]: {raw}")
            pieces.append(before + self._lookup(section, reference.strip(), trail))
        return "".join(pieces) + rest
