from narrow import bullets, entry, paragraphs, wrap


def test_words_fill_the_line():
    assert wrap("aaa bb cccc d", 8) == ["aaa bb", "cccc d"]
    assert wrap("aaa bbbb", 8) == ["aaa bbbb"]


def test_long_word_stands_alone():
    assert wrap("a enormously b", 5) == ["a", "enormously", "b"]


def test_nothing_to_wrap():
    assert wrap("  ", 10, first="* ") == []


def test_paragraphs_stay_apart():
    assert paragraphs("one\ntwo\n\nthree\n", 20) == "one two\n\nthree"


def test_bullets_are_aligned():
    assert bullets(["red green blue", "red"], 11) == "* red green\n  blue\n* red"


def test_short_entry():
    assert entry("cpu", "does the work", 30) == "cpu: does the work"
