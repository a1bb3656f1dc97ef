"""The program that times and compiles vLLM's fused MoE on a GPU, run by file path under vLLM's own interpreter.

It imports the standard library, numpy, torch, triton and vllm, and nothing of slo_bench, which may not be installed
there. `slo_bench.moe.gpu_bench` starts it and talks to it.
"""
