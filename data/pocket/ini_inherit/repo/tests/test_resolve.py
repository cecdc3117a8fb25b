from layerconf import Config

TEXT = """
[base]
host = localhost
port = 80
url = http://${host}:${port}/

[tools : base]
editor = vi
banner = ${editor} on ${host}
"""


def test_reference_in_own_section():
    assert Config(TEXT).get("base", "url") == "http://localhost:80/"


def test_reference_to_inherited_key():
    assert Config(TEXT).get("tools", "banner") == "vi on localhost"


def test_own_value_beats_inherited():
    config = Config("[a]\nx = 1\ny = 2\n[b : a]\nx = 3\n")
    assert config.items("b") == {"x": "3", "y": "2"}


def test_earlier_parent_beats_later():
    config = Config("[a]\nx = 1\n[b]\nx = 2\n[c : b, a]\n")
    assert config.get("c", "x") == "2"
