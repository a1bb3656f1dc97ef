"""What a card can do at most, by its data sheet, and how many copies of a layer's weights keep its cache cold."""

from __future__ import annotations

from dataclasses import dataclass

from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.work import Work, expert_bytes

_MOST_SETS, _LEAST_SETS = 64, 2
_USUAL_SETS = 4
_MOST_BYTES = 24 << 30
_TIMES_L2 = 2


@dataclass(frozen=True, slots=True)
class Card:
    """One card. Bandwidth of its memory in bytes/s; dense operations/s of its tensor cores, None where it has none.

    source: the document, by NVIDIA, that says so. Its figures with sparsity are halved.
    """

    bandwidth_bps: float
    bf16_ops: float
    fp8_ops: float | None
    source: str

    def least_s(self, work: Work, quantisation: Quantisation) -> float | None:
        """The shortest time that bandwidth and tensor cores allow; None where no such operations are known."""
        ops = self.fp8_ops if quantisation.dtype == "fp8_w8a8" else self.bf16_ops
        return None if ops is None else max(work.least_bytes / self.bandwidth_bps, work.operations / ops)


CARDS = {
    "NVIDIA A100-PCIE-40GB": Card(1.555e12, 312e12, None, "A100 Tensor Core GPU data sheet"),
    "NVIDIA A100-SXM4-40GB": Card(1.555e12, 312e12, None, "A100 Tensor Core GPU data sheet"),
    "NVIDIA A100 80GB PCIe": Card(1.935e12, 312e12, None, "A100 Tensor Core GPU data sheet"),
    "NVIDIA A100-SXM4-80GB": Card(2.039e12, 312e12, None, "A100 Tensor Core GPU data sheet"),
    "NVIDIA L4": Card(0.3e12, 121e12, 242e12, "L4 Tensor Core GPU data sheet"),
    "NVIDIA L40S": Card(0.864e12, 362e12, 733e12, "L40S data sheet"),
    "NVIDIA H100 PCIe": Card(2.0e12, 756e12, 1513e12, "H100 PCIe product brief and H100 data sheet"),
    "NVIDIA H100 NVL": Card(3.9e12, 835e12, 1671e12, "H100 Tensor Core GPU data sheet"),
    "NVIDIA H100 80GB HBM3": Card(3.35e12, 989e12, 1979e12, "H100 Tensor Core GPU data sheet"),
    "NVIDIA H200": Card(4.8e12, 989e12, 1979e12, "H200 Tensor Core GPU data sheet"),
    "NVIDIA H200 NVL": Card(4.8e12, 835e12, 1671e12, "H200 Tensor Core GPU data sheet"),
    "NVIDIA B200": Card(8.0e12, 2250e12, 4500e12, "Blackwell architecture data sheet, HGX B200"),
}
"""By the name that the driver gives."""


def card_of(device: str) -> Card | None:
    """What is known of a card; None for any other, also one whose name is only like it."""
    return CARDS.get(device)


def weight_sets(shape: MoeShape, quantisation: Quantisation, l2_bytes: int | None, *, rank: int = 0) -> int:
    """Copies of the weights over which calls go round, so that no call finds what an earlier one read.

    Between two uses of a copy the others are read: even where every token goes to the same experts, at least twice as
    much as the level-2 cache holds. l2_bytes: None where it is not known. Very large layers get fewer, and read more.
    """
    if l2_bytes is None:
        return _USUAL_SETS
    held = len(shape.held_by(rank))
    each = expert_bytes(shape, quantisation)
    wanted = 1 - (-_TIMES_L2 * l2_bytes // (min(shape.top_k, held) * each))
    return max(_LEAST_SETS, min(wanted, _MOST_SETS, _MOST_BYTES // (held * each)))
