"""What this interpreter and its GPU are, and how fast a long read of memory is."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime import driver
from vllm.model_executor.layers.fused_moe import fused_moe
from vllm.platforms import current_platform

_READ_BYTES, _LEAST_BYTES = 4 << 30, 2 << 30
_READS = 12


def facts(*, measures_bandwidth: bool) -> dict[str, Any]:
    """The facts; the bandwidth is null where it is not asked for, or where less than 2 GB of memory are free."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": current_platform.get_device_name(),
        "uuid": f"GPU-{str(properties.uuid).removeprefix('GPU-')}" if hasattr(properties, "uuid") else None,
        "shared_bytes": max_shared_bytes(),
        "l2_bytes": int(properties.L2_cache_size),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"vllm": version("vllm"), "torch": torch.__version__, "triton": triton.__version__},
        "config_folder": str(Path(fused_moe.__file__).resolve().parent / "configs"),
        "bandwidth_bps": read_bandwidth() if measures_bandwidth else None,
    }


def max_shared_bytes() -> int:
    """Shared memory that one block of threads can have, as Triton's launcher holds a kernel against it."""
    return int(driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"])


def read_bandwidth() -> float | None:
    """Bytes/s that a sum over several GB reads: the faster of two ways to sum, the median of some reads of each."""
    free, _ = torch.cuda.mem_get_info()
    size = min(_READ_BYTES, free // 2)
    if size < _LEAST_BYTES:
        return None
    block = torch.ones(size // 4 // 4096, 4096, dtype=torch.float32, device="cuda")
    best_s = min(_median_read_s(block.sum), _median_read_s(partial(block.sum, dim=1)))
    return float(block.numel() * block.element_size() / best_s)


def _median_read_s(read: Callable[[], torch.Tensor]) -> float:
    for _ in range(3):
        read()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_READS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        read()
        mark.record()
    torch.cuda.synchronize()
    times_ms = sorted(before.elapsed_time(after) for before, after in pairwise(marks))
    return float(times_ms[_READS // 2]) / 1e3
