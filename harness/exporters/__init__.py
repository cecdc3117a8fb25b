"""Our rollouts in the formats of others."""
