from leafing import Pages


def test_last_page():
    assert Pages(41, 20).last == 3
    assert Pages(40, 20).last == 2
    assert Pages(0, 20).last == 1


def test_bounds():
    assert Pages(41, 20).bounds(3) == (40, 41)
    assert Pages(41, 20).bounds(99) == (40, 41)
