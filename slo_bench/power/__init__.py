"""Power and energy of the GPUs that a server uses, read in a process of their own."""
