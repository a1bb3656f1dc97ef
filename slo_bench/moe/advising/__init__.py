"""What to do about the warning that vLLM runs a default MoE configuration."""
