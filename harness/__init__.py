"""Runs things: rollouts, forks and branches of LLM agents in real sandboxes. See DESIGN.md."""

__version__ = "0.1.0"
