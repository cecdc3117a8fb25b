"""Shared bills, split to the cent."""

from tally.ledger import Ledger
from tally.money import format_cents, parse_cents
from tally.split import allocate

__all__ = ["Ledger", "allocate", "format_cents", "parse_cents"]
