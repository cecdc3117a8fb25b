from lineup import in_order, newest, parse


def test_hyphen_in_build_is_stable():
    version = parse("1.4.0+linux-x86")
    assert version.stable
    assert version.numbers == (1, 4, 0)
    assert version.build == "linux-x86"


def test_hyphen_in_build_round_trip():
    for text in ("1.4.0+linux-x86", "0.0.1+a-b-c.9", "2.0.0+-", "1.0.0+2024-05-01"):
        assert str(parse(text)) == text
    assert newest(["1.3.9", "1.4.0+linux-x86"]) == "1.4.0+linux-x86"


def test_hyphen_in_build_does_not_order():
    given = ["1.4.0+z-1", "1.4.0-rc.1+a-b", "1.4.0+a-2", "1.4.0"]
    assert in_order(given) == ["1.4.0-rc.1+a-b", "1.4.0+z-1", "1.4.0+a-2", "1.4.0"]


def test_pre_release_and_build_with_hyphens():
    version = parse("1.4.0-x-ray.2+linux-x86")
    assert version.pre == "x-ray.2"
    assert version.build == "linux-x86"
    assert not version.stable


def test_plain_round_trip():
    for text in ("1.4.0", "1.4.0-rc.1", "1.4.0+b.1", "1.4.0-rc.1+b-1"):
        assert str(parse(text)) == text


def test_equal_versions_keep_their_order():
    assert in_order(["1.0.0+b", "1.0.0+a", "0.9.0"]) == ["0.9.0", "1.0.0+b", "1.0.0+a"]


def test_bad_core_is_refused():
    for text in ("1.4+linux", "1.4.0.1", "x.1.2-rc"):
        try:
            parse(text)
        except ValueError:
            continue
        assert False, text + " was taken"
