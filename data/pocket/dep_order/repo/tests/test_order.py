from stepwise import CycleError, build_order, parse_rules, stages


def test_needs_come_first():
    graph = parse_rules("app: lib assets\nlib: core\n")
    assert build_order(graph) == ["assets", "core", "lib", "app"]


def test_stages():
    graph = parse_rules("app: lib assets\nlib: core\n")
    assert stages(graph) == [["assets", "core"], ["lib"], ["app"]]


def test_diamond():
    graph = parse_rules("top: left right\nleft: base\nright: base\n")
    assert build_order(graph) == ["base", "left", "right", "top"]


def test_cycle_is_refused():
    try:
        build_order(parse_rules("a: b\nb: c\nc: a\nd:\n"))
    except CycleError as error:
        assert error.names == ["a", "b", "c"]
        return
    assert False, "a cycle was taken"
