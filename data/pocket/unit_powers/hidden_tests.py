from measures import UnitError, convert


def close(left, right):
    return abs(left - right) <= 1e-9 * abs(right)


def test_density():
    assert close(convert(1, "g/cm^3", "kg/m^3"), 1000)
    assert close(convert(1000, "kg/m^3", "g/cm^3"), 1)


def test_prefixed_area_and_volume():
    assert close(convert(1, "cm^3", "m^3"), 1e-6)
    assert close(convert(2, "km^2", "m^2"), 2e6)
    assert close(convert(1, "ft^2", "cm^2"), 929.0304)


def test_speed_per_prefixed_time():
    assert close(convert(3, "m/ms", "m/s"), 3000)
    assert close(convert(1, "N/mm^2", "MPa"), 1)


def test_powers_without_prefix():
    assert close(convert(1, "ft^2", "m^2"), 0.09290304)
    assert close(convert(12960, "m/h^2", "m/s^2"), 0.001)


def test_slash_applies_to_one_term():
    assert close(convert(7, "m/s/s", "m/s^2"), 7)
    assert close(convert(60, "m/min*g", "m*g/s"), 1)


def test_kilometres_per_hour():
    assert close(convert(36, "km/h", "m/s"), 10)


def test_bad_power_is_refused():
    try:
        convert(1, "m^x", "m")
    except UnitError as error:
        assert "m^x" in str(error)
    else:
        raise AssertionError("no UnitError")
