from layerconf import ConfigError
from layerconf.parser import parse


def test_header_lists_parents():
    sections = parse("[a]\n[b : a]\n[c : a, b]\n")
    assert [sections[name].parents for name in "abc"] == [[], ["a"], ["a", "b"]]


def test_comments_and_blank_lines_are_skipped():
    sections = parse("# top\n\n[a]\n; note\nkey = 1 = 2\n")
    assert sections["a"].values == {"key": "1 = 2"}


def test_repeated_section_is_refused():
    try:
        parse("[a]\n[a]\n")
    except ConfigError as error:
        assert "twice" in str(error)
    else:
        raise AssertionError("no ConfigError")
