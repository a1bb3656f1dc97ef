"""The configurations that a tuner of vLLM's fused MoE kernel may try: vLLM's own space, without what cannot differ.

Sources: get_configs_compute_bound in vLLM's benchmarks/kernels/benchmark_moe.py, get_default_config and
invoke_fused_moe_triton_kernel in fused_moe/fused_moe.py (0.20.2 to 0.32.0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from itertools import product

from slo_bench.moe.config_files import Version
from slo_bench.moe.shape import MoeShape, Quantisation
from traffic.errors import UsageError

HOPPER_SHARED_BYTES = 232_448
"""Shared memory that one block of threads can have on compute capability 9.0."""

_NEW_DEFAULT: Version = (0, 31)
_OLD_DEFAULT: Version = (0, 24)
_TINY_TOKENS, _NARROW_TILE = 8, 64
_ANY = math.inf
_BYTES = {None: 2, "fp8_w8a8": 1, "fp8_w8a16": 2, "int8_w8a16": 2, "int4_w4a16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Launch options of the kernel: the tile (rows, columns, depth), tiles in a group, warps, pipeline stages."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    num_warps: int
    num_stages: int

    @property
    def accumulators(self) -> float:
        """Of a tile, in each thread: what does not fit its registers is spilled to memory."""
        return self.block_m * self.block_n / (_WARP_THREADS * self.num_warps)

    def entry(self) -> dict[str, int]:
        """As it stands in a configuration file."""
        return dict(zip(_NAMES, astuple(self), strict=True))

    def clamped(self, quantisation: Quantisation) -> KernelConfig:
        """What really runs: the launch cuts the tile's depth to the smaller side of a block of scales."""
        block = quantisation.block_shape
        if block is None or not all(block):
            return self
        return replace(self, block_k=min(self.block_k, *block))

    def shared_bytes(self, quantisation: Quantisation) -> int:
        """Shared memory that its pipeline takes, about: one tile of each operand per stage."""
        ran = self.clamped(quantisation)
        return ran.num_stages * (ran.block_m + ran.block_n) * ran.block_k * _BYTES[quantisation.dtype]


_WARP_THREADS = 32
_NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


def published_space() -> Iterator[KernelConfig]:
    """The 1,920 configurations of vLLM's tuner on CUDA, in its order of values."""
    sizes = product((16, 32, 64, 128, 256), (32, 64, 128, 256), (64, 128, 256), (1, 16, 32, 64), (4, 8), (2, 3, 4, 5))
    return (KernelConfig(*each) for each in sizes)


def fits_blocks(config: KernelConfig, quantisation: Quantisation) -> bool:
    """Whether tile and block of scales divide each other, both ways: the filter of vLLM's tuner since 0.25."""
    block = quantisation.block_shape
    if block is None or not all(block):
        return True
    pairs = ((config.block_n, block[0]), (config.block_k, block[1]))
    return all(max(pair) % min(pair) == 0 for pair in pairs)


def distinct(configs: Iterable[KernelConfig], quantisation: Quantisation) -> tuple[KernelConfig, ...]:
    """Each configuration once, as it really runs after the clamp."""
    return tuple(dict.fromkeys(each.clamped(quantisation) for each in configs))


def candidates(
    quantisation: Quantisation, defaults: Iterable[KernelConfig], *, shared_bytes: int = HOPPER_SHARED_BYTES
) -> tuple[KernelConfig, ...]:
    """What a tuner tries: the defaults first, which are never dropped, then the published space.

    Out of it are those that do not fit the blocks, that clamp to another one, or that need more shared memory.
    """
    fitting = (each for each in published_space() if fits_blocks(each, quantisation))
    small = (each for each in fitting if each.shared_bytes(quantisation) <= shared_bytes)
    return distinct((*defaults, *small), quantisation)


def default_config(tokens: int, shape: MoeShape, quantisation: Quantisation, version: Version) -> KernelConfig:
    """What vLLM runs on CUDA for so many tokens when it finds no file.

    Raises UsageError for 4-bit and 8-bit integer weights, whose kernels choose for themselves, and for small batches in
    releases between 0.24 and 0.31.
    """
    if quantisation.dtype in ("int4_w4a16", "int8_w8a16"):
        raise UsageError(f"the default configuration for {quantisation.dtype} is not known")
    if quantisation.dtype != "fp8_w8a8" or quantisation.block_shape is None:
        return _plain_default(tokens, len(shape.held_by(0)), is_fp8=quantisation.dtype == "fp8_w8a8")
    rows, depth = quantisation.block_shape
    old = KernelConfig(_first(tokens, (64, 16), (_ANY, 64)), rows, depth, _first(tokens, (16, 1), (_ANY, 32)), 4, 3)
    if tokens > _TINY_TOKENS or rows % _NARROW_TILE or version <= _OLD_DEFAULT:
        return old
    if version < _NEW_DEFAULT:
        raise UsageError(f"the default of vLLM {version[0]}.{version[1]} for {tokens} tokens is not known")
    return replace(old, block_n=_NARROW_TILE, num_stages=_first(tokens, (4, 4), (_ANY, 3)))


def _plain_default(tokens: int, experts: int, *, is_fp8: bool) -> KernelConfig:
    return KernelConfig(
        block_m=_first(tokens, (32, 16), (96, 32), (512, 64), (_ANY, 128)),
        block_n=_first(tokens, (64, 64), (_ANY, 128)),
        block_k=128 if is_fp8 else _first(tokens, (64, 128), (_ANY, 64)),
        group_m=_first(tokens // experts, (128, 1), (_ANY, 16)),
        num_warps=_first(tokens, (128, 4), (_ANY, 8)),
        num_stages=_first(tokens, (32, 4), (_ANY, 3)),
    )


def _first(number: int, *steps: tuple[float, int]) -> int:
    """The value of the first (bound, value) whose bound is not exceeded."""
    return next(value for bound, value in steps if number <= bound)
