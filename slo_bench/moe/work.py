"""The work that a routing is for one rank's fused MoE: rows, experts hit, bytes that must move, operations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slo_bench.moe.routing import Ids, local_ids, rows_per_expert
from slo_bench.moe.shape import MoeShape, Quantisation

_BITS = {None: 16, "fp8_w8a8": 8, "fp8_w8a16": 8, "int8_w8a16": 8, "int4_w4a16": 4, "float32": 32}
_SCALE_BYTES = 4
_MATRICES = 3  # gate, up and down


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of the fused MoE has to do on a rank.

    rows: (token, expert) pairs of this rank; most_rows: of its fullest expert. weight_bytes: of the experts really hit,
    with the scales of their blocks. state_bytes: hidden states read once and written once, in the model's own width
    (two bytes, four for float32). operations: multiplications and additions of the matrix products.
    """

    tokens: int
    rows: int
    most_rows: int
    experts_hit: int
    weight_bytes: int
    state_bytes: int
    operations: int

    @property
    def least_bytes(self) -> int:
        """What has to be moved at the least: what a rank keeps between its two products may stay in the cache."""
        return self.weight_bytes + self.state_bytes

    @property
    def intensity(self) -> float | None:
        """Operations per byte that has to move; None where nothing is to do."""
        return self.operations / self.least_bytes if self.rows else None


def estimated_rows(tokens: int, shape: MoeShape) -> int:
    """Rows of an expert as kernels estimate them from the shape alone: max(1, ceil(tokens x top-k / experts))."""
    return max(1, -(-tokens * shape.top_k // shape.experts))


def expected_hit(tokens: int, shape: MoeShape) -> float:
    """Experts of the layer hit by so many tokens under uniform routing, on average."""
    missed = 1 - shape.top_k / shape.experts
    return shape.experts * (1 - missed**tokens)


def expert_bytes(shape: MoeShape, quantisation: Quantisation) -> int:
    """Bytes of one expert's weights on a rank, with the scales of blocks; zero points and tensor scales left out."""
    block = quantisation.block_shape
    weights = _MATRICES * shape.columns * shape.hidden * _BITS[quantisation.dtype] // 8
    if block is None or not all(block):
        return weights
    first = math.ceil(2 * shape.columns / block[0]) * math.ceil(shape.hidden / block[1])
    second = math.ceil(shape.hidden / block[0]) * math.ceil(shape.columns / block[1])
    return weights + _SCALE_BYTES * (first + second)


def work(ids: Ids, shape: MoeShape, quantisation: Quantisation, *, rank: int = 0) -> Work:
    """The work of these tokens, ids of shape (tokens, top-k), for one rank.

    Hidden states are counted for the tokens that have an expert on the rank.
    """
    mine = local_ids(ids, shape, rank) >= 0
    held = shape.held_by(rank)
    rows = rows_per_expert(ids, shape)[held.start : held.stop]
    total, hit = int(rows.sum()), int(np.count_nonzero(rows))
    width = 4 if quantisation.dtype == "float32" else 2
    return Work(
        tokens=len(ids),
        rows=total,
        most_rows=int(rows.max(initial=0)),
        experts_hit=hit,
        weight_bytes=hit * expert_bytes(shape, quantisation),
        state_bytes=2 * width * shape.hidden * int(np.count_nonzero(mine.any(axis=1))),
        operations=2 * _MATRICES * shape.columns * shape.hidden * total,
    )
