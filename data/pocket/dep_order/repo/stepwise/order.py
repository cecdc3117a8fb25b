"""Putting the steps of a graph in order."""


class CycleError(Exception):
    """Some steps need each other; `names` lists the steps that could not be placed."""

    def __init__(self, names):
        super().__init__("steps need each other: " + ", ".join(names))
        self.names = names


def stages(graph):
    """Groups of steps; the steps of a group need only steps of the groups before it."""
    waiting = {name: len(graph.needs(name)) for name in graph.names()}
    dependents = {name: {} for name in waiting}
    for name, need in graph.edges():
        dependents[need][name] = True

    found = []
    ready = [name for name, count in waiting.items() if count == 0]
    while ready:
        found.append(ready)
        for name in ready:
            del waiting[name]
            for dependent in dependents[name]:
                waiting[dependent] -= 1
        ready = [name for name, count in waiting.items() if count == 0]
    if waiting:
        raise CycleError(list(waiting))
    return found


def build_order(graph):
    """All steps in an order in which they can be built."""
    stages(graph)  # refuses steps that need each other
    placed = {}
    declared = graph.names()
    while len(placed) < len(declared):
        for name in declared:
            if name not in placed and all(need in placed for need in graph.needs(name)):
                placed[name] = True
                break
    return list(placed)
