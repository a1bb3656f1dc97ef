"""What the grouped GEMM is timed with, out of the options of `slo-bench kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slo_bench.moe.grouped.bench import Effort
from slo_bench.moe.grouped.document import Source
from slo_bench.moe.grouped.estimates import corrected, flips_at, shipped, swap_below
from slo_bench.moe.kernels_options import KernelsOptions
from slo_bench.moe.routing import Ids, Routing, draw
from slo_bench.moe.shape import MoeShape, Quantisation
from traffic.errors import UsageError

FP8_BLOCKS = Quantisation("fp8_w8a8", (128, 128))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is timed. sweep: token counts, ascending. scan: estimates at the main comparison's tokens, ascending."""

    shape: MoeShape
    routings: tuple[Routing, ...]
    tokens: int
    sweep: tuple[int, ...]
    scan: tuple[int, ...]
    effort: Effort

    def estimates(self, tokens: int) -> dict[Source, int]:
        """Both estimates for so many tokens."""
        return {"shipped": shipped(tokens), "corrected": corrected(tokens, self.shape)}

    def ids(self, routing: Routing, tokens: int) -> Ids:
        """The experts of so many tokens: the first of the largest draw, so that a larger call has all of a smaller."""
        return draw(routing, self.shape, self.sweep[-1], seed=self.effort.seed)[:tokens]

    @property
    def all_estimates(self) -> tuple[int, ...]:
        """Every estimate that occurs, ascending."""
        swept = {each for tokens in self.sweep for each in self.estimates(tokens).values()}
        return tuple(sorted(swept | set(self.scan)))


def plan_of(options: KernelsOptions, sms: int) -> Plan:
    """The plan for a card of so many SMs. Raises UsageError for what FlashInfer's path does not take."""
    shape, quantisation = options.layer()
    if quantisation not in (Quantisation(), FP8_BLOCKS):
        raise UsageError("FlashInfer's grouped GEMM is FP8 in blocks of 128 x 128: leave --dtype and --block-shape out")
    if shape.slices > 1:
        raise UsageError("FlashInfer's grouped GEMM is timed on whole experts: give ep= in --shape, no slices")
    if shape.experts % shape.ep_size:
        raise UsageError(f"{shape.experts} experts are not even over {shape.ep_size} ranks: FlashInfer wants them so")
    if shape.experts // shape.ep_size < shape.top_k:
        raise UsageError("a rank holds fewer experts than a token goes to: concentrated routing needs them on one rank")
    tokens = options.tokens
    scan = tuple(sorted({int(word) for word in options.estimate} or set(_usual_scan(tokens, shape, sms))))
    if scan[-1] > tokens * shape.top_k:
        raise UsageError(f"--estimate {scan[-1]}: {tokens} tokens x top-{shape.top_k} are fewer rows than that")
    sweep = {int(word) for word in options.batch_size} or set(_usual_sweep(shape, sms))
    return Plan(
        shape,
        options.routings(shape),
        tokens,
        tuple(sorted(sweep | {tokens})),
        scan,
        Effort(options.warm_ups, options.samples, options.seed),
    )


def _usual_sweep(shape: MoeShape, sms: int) -> Sequence[int]:
    """Around both flips and between them."""
    least, most = flips_at(shape, sms).values()
    around = [least // 4, least // 2, least - 1, least, least + 1, 2 * least, 2 * least + 1]
    between = [size for size in (96, 128, 192, 288, 512, 1024) if 2 * least < size < most]
    return [*around, *between, most - 1, most]


def _usual_scan(tokens: int, shape: MoeShape, sms: int) -> Sequence[int]:
    """Both sides of everything that changes the kernel, as far as there are rows."""
    least = swap_below(sms)
    edges = [1, corrected(tokens, shape), 16, 17, 24, 25, least - 1, least, 64, 65, 128, shipped(tokens)]
    return [each for each in edges if each <= tokens * shape.top_k]
