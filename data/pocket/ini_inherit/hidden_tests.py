from layerconf import Config, ConfigError

CHAIN = """
[base]
host = localhost
port = 80
origin = ${host}:${port}
url = http://${host}:${port}/
link = http://${origin}/start

[staging : base]
host = staging.local

[qa : staging]
port = 8080
"""


def test_inherited_value_sees_overrides_along_the_chain():
    config = Config(CHAIN)
    assert config.get("qa", "url") == "http://staging.local:8080/"
    assert config.get("staging", "url") == "http://staging.local:80/"


def test_items_expands_as_seen_from_the_section():
    assert Config(CHAIN).items("qa") == {
        "host": "staging.local",
        "port": "8080",
        "origin": "staging.local:8080",
        "url": "http://staging.local:8080/",
        "link": "http://staging.local:8080/start",
    }


def test_reference_through_another_reference():
    assert Config(CHAIN).get("qa", "link") == "http://staging.local:8080/start"


def test_parent_itself_is_unchanged():
    config = Config(CHAIN)
    assert config.get("base", "url") == "http://localhost:80/"
    assert config.items("base")["link"] == "http://localhost:80/start"


def test_own_value_may_use_inherited_keys():
    config = Config("[a]\nname = box\n[b : a]\nlabel = <${name}>\n")
    assert config.get("b", "label") == "<box>"
    assert config.items("b") == {"name": "box", "label": "<box>"}


def test_unknown_reference_is_an_error():
    config = Config("[a]\nx = ${nowhere}\n[b : a]\ny = 1\n")
    try:
        config.get("b", "x")
    except ConfigError as error:
        assert "nowhere" in str(error)
    else:
        raise AssertionError("no ConfigError")


def test_reference_loop_is_an_error():
    config = Config("[a]\nx = ${y}\ny = ${x}\n")
    try:
        config.get("a", "x")
    except ConfigError as error:
        assert "refers to itself" in str(error)
    else:
        raise AssertionError("no ConfigError")
