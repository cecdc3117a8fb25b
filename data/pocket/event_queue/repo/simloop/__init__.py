"""A small discrete event simulation."""

from simloop.engine import Engine
from simloop.events import EventQueue

__all__ = ["Engine", "EventQueue"]
