"""`slo-bench cloud`: what a session is asked for, and what is sent to its machine. Renting itself is in `cloud`."""
