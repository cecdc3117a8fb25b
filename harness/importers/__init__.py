"""Rollouts that were not made here become bases."""
