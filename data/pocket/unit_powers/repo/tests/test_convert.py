from measures import UnitError, convert


def close(left, right):
    return abs(left - right) <= 1e-9 * abs(right)


def test_simple_lengths():
    assert close(convert(2, "km", "m"), 2000)
    assert close(convert(10, "ft", "m"), 3.048)


def test_mass_prefixes():
    assert close(convert(3, "kg", "g"), 3000)
    assert close(convert(5, "mg", "ug"), 5000)


def test_named_and_spelled_out_force():
    assert close(convert(4, "kN", "kg*m/s^2"), 4000)


def test_different_kinds_are_refused():
    try:
        convert(1, "m^2", "m")
    except UnitError as error:
        assert "same thing" in str(error)
    else:
        raise AssertionError("no UnitError")


def test_unknown_unit_is_refused():
    try:
        convert(1, "furlong", "m")
    except UnitError as error:
        assert "furlong" in str(error)
    else:
        raise AssertionError("no UnitError")
