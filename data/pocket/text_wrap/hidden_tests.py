from narrow import bullets, entry, wrap


def test_wide_indent_stays_within_width():
    lines = wrap("copy all the files into place", 16, first="-a ", rest=" " * 8)
    assert lines == ["-a copy all the", "        files", "        into", "        place"]
    for width in range(12, 30):
        lines = wrap("one two three four five six", width, first="", rest=" " * 6)
        assert max(len(line) for line in lines) <= width


def test_first_line_uses_its_own_room():
    assert wrap("aa bb cc dd ee ff", 8, first="", rest="    ") == ["aa bb cc", "    dd", "    ee", "    ff"]


def test_entry_uses_room_below_long_term():
    assert entry("dependency", "a b c d e f g h", 16) == "dependency: a b\n    c d e f g h"


def test_equal_prefixes():
    assert bullets(["aa bb cc"], 7, mark="- ") == "- aa bb\n  cc"


def test_long_word_with_indent():
    assert wrap("a enormously b", 6, first="> ", rest="> ") == ["> a", "> enormously", "> b"]


def test_exact_fit():
    assert wrap("aaa bbb ccc", 11) == ["aaa bbb ccc"]
    assert wrap("aaa bbb ccc", 10) == ["aaa bbb", "ccc"]


def test_width_is_checked():
    try:
        wrap("a", 0)
    except ValueError:
        return
    assert False, "width 0 was taken"
