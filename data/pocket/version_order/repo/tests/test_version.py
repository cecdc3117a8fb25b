from lineup import parse


def test_parts():
    version = parse("1.4.0-rc.1+build.7")
    assert version.numbers == (1, 4, 0)
    assert version.pre == "rc.1"
    assert version.build == "build.7"


def test_build_without_pre_release():
    assert parse("1.4.0+build.7").build == "build.7"
    assert parse("1.4.0+build.7").stable


def test_hyphen_in_pre_release():
    assert parse("1.4.0-x-ray").pre == "x-ray"


def test_not_a_version():
    for text in ("", "main", "1.4", "1.4.x", "v1.4.0"):
        try:
            parse(text)
        except ValueError:
            continue
        assert False, text + " was taken"
