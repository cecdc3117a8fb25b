"""Scaffolds. `protocol` is the contract; every other module meets it, and so does `harness.prompting`, our own."""
