"""Is this client fit to measure: its checks, its ceiling, and an engine that knows the truth."""
