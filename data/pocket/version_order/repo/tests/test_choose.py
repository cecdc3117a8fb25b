from lineup import in_order, newest


def test_numbers_are_compared_as_numbers():
    assert in_order(["1.10.0", "1.9.0"]) == ["1.9.0", "1.10.0"]


def test_pre_release_comes_first():
    given = ["1.0.0", "1.0.0-rc.10", "1.0.0-rc.9", "1.0.0-rc"]
    assert in_order(given) == ["1.0.0-rc", "1.0.0-rc.9", "1.0.0-rc.10", "1.0.0"]


def test_newest_passes_over_others():
    assert newest(["main", "1.0.0", "1.1.0-rc.1"]) == "1.0.0"
    assert newest(["main", "1.0.0", "1.1.0-rc.1"], allow_pre=True) == "1.1.0-rc.1"
    assert newest(["main"]) is None
