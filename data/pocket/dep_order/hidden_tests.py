from stepwise import CycleError, Graph, build_order, parse_rules, stages


def test_need_repeated_in_second_declaration():
    graph = Graph()
    graph.add("app", ["lib"])
    graph.add("app", ["assets", "lib"])
    graph.add("app", ["lib"])
    assert build_order(graph) == ["lib", "assets", "app"]


def test_need_repeated_within_one_declaration():
    assert build_order(parse_rules("app: lib assets lib\n")) == ["lib", "assets", "app"]
    graph = Graph()
    graph.add("app", ["lib", "lib", "lib"])
    assert build_order(graph) == ["lib", "app"]


def test_stages_with_repeated_needs():
    graph = parse_rules("app: lib\nlib: core\napp: lib tool\ntool: core core\n")
    assert stages(graph) == [["core"], ["lib", "tool"], ["app"]]


def test_real_cycle_with_names():
    graph = parse_rules("app: lib\nlib: app tool\n")
    try:
        build_order(graph)
    except CycleError as error:
        assert error.names == ["app", "lib"]
        return
    assert False, "a cycle was taken"


def test_first_declared_goes_first():
    graph = parse_rules("c:\na: c\nb:\n")
    assert build_order(graph) == ["c", "a", "b"]


def test_declarations_from_several_files_add_up():
    graph = parse_rules("app: lib\nlib:\napp: assets\n")
    assert graph.needs("app") == ["lib", "assets"]
    assert build_order(graph) == ["lib", "assets", "app"]


def test_needs_given_as_tuple():
    graph = Graph()
    graph.add("app", ("lib", "core"))
    graph.add("lib", ("core",))
    assert build_order(graph) == ["core", "lib", "app"]
