"""Programs that are sent to a machine and run there with its own Python, before anything of ours is installed."""
