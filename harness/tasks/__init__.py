"""Sets of tasks. `protocol` is the contract; every other module meets it."""
