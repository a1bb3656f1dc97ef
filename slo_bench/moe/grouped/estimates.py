"""What FlashInfer expects of an expert's rows, and which branch and tile that leads to.

From `grouped_gemm_dispatch` and `get_best_gemm_config` of FlashInfer 0.6.12, whose own answers are asked for on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slo_bench.moe.shape import MoeShape
from slo_bench.moe.work import estimated_rows

SHIPPED, CORRECTED, SCAN = "shipped", "corrected", "scan"

_H20_SMS, _H20_ROWS, _ROWS = 78, 64, 32
_FEW_ROWS = 64
_COLUMNS = range(16, 129, 8)


class Branch(StrEnum):
    """Which of two kernels runs. swapAB multiplies the transposed matrices: its tiles may be narrow in tokens."""

    NORMAL = "normal"
    SWAPPED = "swapAB"


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of the result that a block computes at a time; under swapAB its rows are the weights'."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


def shipped(tokens: int) -> int:
    """The estimate of FlashInfer as it is: the tokens of the call, whatever top-k and the count of experts."""
    return tokens


def corrected(tokens: int, shape: MoeShape) -> int:
    """The proposed one: max(1, ceil(tokens x top-k / all physical experts))."""
    return estimated_rows(tokens, shape)


def swap_below(sms: int) -> int:
    """Estimates below this take swapAB: 64 on cards of 78 SMs (H20), else 32."""
    return _H20_ROWS if sms == _H20_SMS else _ROWS


def branch(estimate: int, sms: int) -> Branch:
    """The branch that an estimate takes on a card of so many SMs."""
    return Branch.SWAPPED if estimate < swap_below(sms) else Branch.NORMAL


def flips_at(shape: MoeShape, sms: int) -> dict[str, int]:
    """The fewest tokens at which each estimate leaves swapAB."""
    least = swap_below(sms)
    return {SHIPPED: least, CORRECTED: (least - 1) * shape.experts // shape.top_k + 1}


def tile(estimate: int, n: int, groups: int, sms: int) -> Tile:
    """The tile for a stage of n columns and so many experts: fewest waves, then the fullest last one, then narrow."""
    is_swapped = branch(estimate, sms) is Branch.SWAPPED
    rows, columns = (n, estimate) if is_swapped else (estimate, n)
    block = _FEW_ROWS if rows <= _FEW_ROWS else 2 * _FEW_ROWS

    def cost(width: int) -> tuple[int, int, int]:
        blocks = -(-rows // block) * -(-columns // width) * groups
        return -(-blocks // sms), -(blocks % sms or sms), width

    return Tile(block, min(_COLUMNS, key=cost))
