"""Tables as comma-separated text."""

from plainsheet.reader import load, load_records
from plainsheet.writer import dump

__all__ = ["dump", "load", "load_records"]
