from plainsheet import dump, load, load_records


def test_plain_rows():
    assert load("a,b\nc,d\n") == [["a", "b"], ["c", "d"]]


def test_empty_fields():
    assert load("a,,b\n,\n") == [["a", "", "b"], ["", ""]]


def test_empty_lines_are_skipped():
    assert load("a,b\n\nc,d") == [["a", "b"], ["c", "d"]]


def test_commas_and_quotes_come_back():
    rows = [["one, two", 'say "hi"'], ["", "plain"], [""]]
    assert dump(rows) == '"one, two","say ""hi"""\n,plain\n""\n'
    assert load(dump(rows)) == rows


def test_line_break_is_quoted():
    assert dump([["a\nb", "c"]]) == '"a\nb",c\n'


def test_records():
    assert load_records("name,age\nann,31\n") == [{"name": "ann", "age": "31"}]
