"""Build steps in order."""

from stepwise.graph import Graph, parse_rules
from stepwise.order import CycleError, build_order, stages

__all__ = ["CycleError", "Graph", "build_order", "parse_rules", "stages"]
