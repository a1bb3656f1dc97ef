"""The fused MoE kernel: its configuration files, the shapes and routings that it meets, and the work that they are."""
