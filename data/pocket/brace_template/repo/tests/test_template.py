from letters import TemplateError, render


def test_placeholders():
    assert render("{a}-{b}{a}", {"a": 1, "b": "x"}) == "1-x1"


def test_filters_run_left_to_right():
    assert render("{name | trim | upper | quote}", {"name": " ann "}) == '"ANN"'


def test_escaped_braces():
    assert render("use \\{name\\} for {name}", {"name": "ann"}) == "use {name} for ann"


def test_escaped_backslash_in_plain_text():
    assert render("a\\\\b \\n {x}", {"x": 1}) == "a\\b \\n 1"


def test_values_are_not_rendered_again():
    assert render("{a}", {"a": "{b}\\\\"}) == "{b}\\\\"


def test_unclosed_placeholder():
    try:
        render("Dear {name", {"name": "ann"})
    except TemplateError as error:
        assert "closed" in str(error)
    else:
        raise AssertionError("no TemplateError")
