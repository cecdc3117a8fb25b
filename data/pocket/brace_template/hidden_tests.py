from letters import TemplateError, render

WHO = {"user": "ann", "file": "a.txt"}


def test_placeholder_after_escaped_backslash():
    assert render("C:\\\\{user}\\\\{file}", WHO) == "C:\\ann\\a.txt"


def test_backslash_then_escaped_brace():
    assert render("\\\\\\{user\\} is {user}", WHO) == "\\{user} is ann"
    assert render("{file}\\\\\\{user}", WHO) == "a.txt\\{user}"


def test_longer_runs_of_backslashes():
    assert render("\\" * 4 + "{user}", WHO) == "\\\\ann"
    assert render("\\" * 5 + "{user}", WHO) == "\\\\{user}"
    assert render("\\" * 6 + "{user}", WHO) == "\\\\\\ann"


def test_all_escapes_in_one_template():
    assert render("\\\\{user}: \\{file\\} \\\\\\{ {file}", WHO) == "\\ann: {file} \\{ a.txt"


def test_start_and_end_of_the_text():
    assert render("{user} and {file}", WHO) == "ann and a.txt"
    assert render("\\{user}{user}", WHO) == "{user}ann"
    assert render("", WHO) == ""


def test_other_backslashes_are_kept():
    assert render("\\t{user}\\", WHO) == "\\tann\\"


def test_value_ending_in_backslash_before_placeholder():
    assert render("{a}{user}", {"a": "C:\\", "user": "ann"}) == "C:\\ann"


def test_unknown_name():
    try:
        render("Dear {nobody}", WHO)
    except TemplateError as error:
        assert "nobody" in str(error)
    else:
        raise AssertionError("no TemplateError")
