"""Convert numbers between compound units such as km/h or kg*m/s^2."""

from measures.convert import UnitError, convert

__all__ = ["UnitError", "convert"]
