from stepwise import Graph, parse_rules


def test_needs_of_several_declarations_add_up():
    graph = Graph()
    graph.add("app", ["lib"])
    graph.add("app", ["assets"])
    assert graph.needs("app") == ["lib", "assets"]


def test_needs_are_steps_too():
    graph = Graph()
    graph.add("app", ["lib"])
    assert graph.names() == ["app", "lib"]


def test_rules():
    graph = parse_rules("app: lib assets  # the product\n\n# nothing\nlib:\n")
    assert graph.names() == ["app", "lib", "assets"]
    assert graph.needs("app") == ["lib", "assets"]


def test_step_cannot_need_itself():
    try:
        parse_rules("app: app")
    except ValueError:
        return
    assert False, "app needs app was taken"
