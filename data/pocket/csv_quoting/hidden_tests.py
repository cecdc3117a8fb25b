from plainsheet import dump, load, load_records


def test_line_break_comes_back():
    rows = [["a\nb", "c"], ["d", "e\nf\ng"], ["h", 'quote "\nin", two']]
    assert load(dump(rows)) == rows


def test_paragraphs_come_back():
    rows = [["1", "first\n\nsecond\n\n\nthird"], ["2", "ok"]]
    assert load(dump(rows)) == rows


def test_line_breaks_at_the_edges():
    rows = [["\n", "x"], ["y\n", "\n\n"], ["\nz", ""]]
    assert load(dump(rows)) == rows


def test_records_with_line_breaks():
    text = 'id,note\n7,"one\ntwo"\n\n8,three\n'
    assert load_records(text) == [
        {"id": "7", "note": "one\ntwo"},
        {"id": "8", "note": "three"},
    ]


def test_doubled_quotes_on_one_line():
    rows = [['"', '""', ',"'], ['a"b', "", "c"]]
    assert load(dump(rows)) == rows


def test_empty_lines_between_rows():
    assert load('\n"a, b",c\n\n\nd,e\n\n') == [["a, b", "c"], ["d", "e"]]


def test_missing_last_line_break():
    assert load('a,"b"') == [["a", "b"]]


def test_nothing_to_read():
    assert load("") == []
    assert load_records("\n\n") == []
