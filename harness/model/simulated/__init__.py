"""A stochastic agent with known propensities, behind the same wire as a real model."""
