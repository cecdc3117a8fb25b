from linkpath import normalise, resolve


def test_two_levels_up():
    assert normalise("../../shared/img/../logo.png") == "../../shared/logo.png"
    assert normalise("../..") == "../.."


def test_levels_that_come_later():
    assert normalise("a/../../../b") == "../../b"
    assert normalise("../a/../../b") == "../../b"
    assert normalise("./../x/.././../../y") == "../../../y"


def test_link_far_above_the_page():
    assert resolve("guide/start.html", "../../../logo.png") == "../../logo.png"


def test_name_that_begins_with_two_dots():
    assert normalise("..cache/x/../y") == "..cache/y"
    assert normalise("...") == "..."


def test_one_level_up_and_aside():
    assert normalise("../a/b/../c") == "../a/c"
    assert normalise("a/b/../../..") == ".."


def test_absolute_never_leaves_the_root():
    assert normalise("/a/../../../b/./c/..") == "/b"


def test_absolute_link_ignores_the_page():
    assert resolve("guide/start.html", "/x/../img//a.png#b") == "/img/a.png#b"
