"""Clients of models. `protocol` is the contract; every other module meets it."""
