"""`slo-bench kernels`: which kernel is timed, by the backend."""

from __future__ import annotations

from slo_bench.moe.grouped.run import grouped
from slo_bench.moe.kernels import kernels as fused_kernels
from slo_bench.moe.kernels_options import GROUPED_GEMM, KernelsOptions


async def kernels(options: KernelsOptions) -> int:
    """Time vLLM's fused MoE, or FlashInfer's grouped GEMM. Raises UsageError and EngineError in one line."""
    return await (grouped(options) if options.backend == GROUPED_GEMM else fused_kernels(options))
