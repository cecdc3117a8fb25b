from linkpath import normalise


def test_dots_and_doubled_slashes():
    assert normalise("a/./b//c/") == "a/b/c"
    assert normalise("a/b/../c") == "a/c"


def test_one_level_up():
    assert normalise("../a") == "../a"
    assert normalise("a/../../b") == "../b"


def test_absolute_stops_at_the_root():
    assert normalise("/../../a") == "/a"
    assert normalise("/..") == "/"


def test_nothing_left():
    assert normalise("") == "."
    assert normalise("a/..") == "."
