"""Places where an agent's commands run. `protocol` is the contract; every other module meets it."""
