"""Arms in order from a plan file, the first one repeated last."""
