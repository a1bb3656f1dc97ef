"""A tiny Qwen3-MoE checkpoint that knows some word problems by heart, and damaged copies of it."""
