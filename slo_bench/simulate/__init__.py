"""The simulated engine behind a real port, with vLLM's endpoints and metric names."""
