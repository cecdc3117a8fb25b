"""Which step needs which."""


class Graph:
    """Steps in the order in which they were first mentioned."""

    def __init__(self):
        self._needs = {}

    def add(self, name, needs=()):
        """Declare that step `name` needs other steps, besides those declared before."""
        known = self._needs.setdefault(name, [])
        for need in needs:
            if need == name:
                raise ValueError(f"{name} needs itself")
            self._needs.setdefault(need, [])
        known.extend(needs)

    def names(self):
        """All steps."""
        return list(self._needs)

    def needs(self, name):
        """The steps that one step needs directly."""
        return list(self._needs[name])

    def edges(self):
        """All pairs of a step and one that it needs."""
        for name, needs in self._needs.items():
            for need in needs:
                yield name, need


def parse_rules(text):
    """A graph from lines such as "app: lib assets"; "#" starts a comment."""
    graph = Graph()
    for line in text.splitlines():
        rule = line.partition("#")[0].strip()
        if not rule:
            continue
        name, colon, needs = rule.partition(":")
        if not colon:
            raise ValueError(f"not a rule: {rule}")
        graph.add(name.strip(), needs.split())
    return graph
