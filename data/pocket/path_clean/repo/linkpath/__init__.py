"""Tidy slash separated paths and resolve links between pages, without touching the disk."""

from linkpath.clean import normalise
from linkpath.links import resolve

__all__ = ["normalise", "resolve"]
