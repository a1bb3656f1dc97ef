"""One rank's two matrix stages: inputs, a float32 reference, three comparisons, and times.

FC1 is hidden -> 2 x intermediate, FC2 intermediate -> hidden. Activation, permutation, finalisation and communication
are no part of it: FC2 reads rows of its own. Ranks differ in their rows alone, so one rank's random weights serve all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .runner import Gemm, Runner, Stage

_BLOCK = 128
_LARGEST = 448.0
"""Of the numbers in E4M3."""

_WEIGHT_SPREAD = 16.0
"""Standard deviation of FP8 weights before their scales: far from the subnormal numbers, far from the largest one."""

_FLUSH_BYTES = 256 << 20
_HEAD_START_CYCLES = 400_000
"""The GPU is kept busy until a sample's launches are enqueued: no time has the work of the CPU in it."""


@dataclass(frozen=True)
class Matrices:
    """Of a stage. weights: (groups, n, k) in E4M3. scales: (groups, n / 128, k / 128). rows: (most, k) in BF16."""

    weights: torch.Tensor
    scales: torch.Tensor
    rows: torch.Tensor
    out: torch.Tensor

    def expert(self, number: int) -> torch.Tensor:
        """An expert's weights in float32."""
        wide = self.scales[number].repeat_interleave(_BLOCK, dim=0).repeat_interleave(_BLOCK, dim=1)
        return self.weights[number].float() * wide


class Rank:
    """The memory of one rank for up to so many rows."""

    def __init__(
        self, gemm: Gemm, *, hidden: int, intermediate: int, groups: int, top_k: int, most_rows: int, seed: int
    ) -> None:
        self.gemm, self.top_k = gemm, top_k
        self.stages = (Stage(2 * intermediate, hidden, groups), Stage(hidden, intermediate, groups))
        self._random = torch.Generator(device="cuda").manual_seed(seed)
        torch.set_float32_matmul_precision("highest")
        self.matrices = tuple(self._matrices(stage, most_rows) for stage in self.stages)
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def _matrices(self, stage: Stage, most_rows: int) -> Matrices:
        weights = torch.empty(stage.groups, stage.n, stage.k, dtype=torch.float8_e4m3fn, device="cuda")
        for matrix in weights:
            matrix.copy_(_WEIGHT_SPREAD * torch.randn(stage.n, stage.k, generator=self._random, device="cuda"))
        blocks = (stage.groups, stage.n // _BLOCK, stage.k // _BLOCK)
        scales = 0.5 + torch.rand(blocks, generator=self._random, device="cuda")
        return Matrices(
            weights,
            scales * stage.k**-0.5 / _WEIGHT_SPREAD,
            torch.randn(most_rows, stage.k, generator=self._random, device="cuda").bfloat16(),
            torch.empty(most_rows, stage.n, dtype=torch.bfloat16, device="cuda"),
        )

    def runner(self, tokens: int, estimate: int) -> Runner:
        """A new one, for this capacity."""
        return Runner(self.gemm, self.stages, tokens, self.top_k, estimate)

    def run(self, runner: Runner, number: int, offsets: torch.Tensor) -> torch.Tensor:
        """Enqueue a stage; its result, of which the rows up to the last offset count."""
        one = self.matrices[number]
        runner.run(number, offsets, rows=one.rows, weights=one.weights, scales=one.scales, out=one.out)
        return one.out

    def flush(self) -> None:
        """Nothing of the weights stays in L2, and the GPU has something to do."""
        self._flush.zero_()
        torch.cuda._sleep(_HEAD_START_CYCLES)  # noqa: SLF001 - torch has no other spin

    def reference(self, number: int, counts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """A stage in float32, from activations rounded to FP8 as the format has it, and from those of BF16."""
        one = self.matrices[number]
        rounded, plain = [], []
        start = 0
        for expert, count in enumerate(counts):
            if not count:
                continue
            rows = one.rows[start : start + count].float()
            weights = one.expert(expert).T
            rounded.append(_rounded(rows) @ weights)
            plain.append(rows @ weights)
            start += count
        return torch.cat(rounded), torch.cat(plain)


def _rounded(rows: torch.Tensor) -> torch.Tensor:
    """Each 128 columns of a row scaled so that the largest is 448, rounded to E4M3, and scaled back."""
    parts = rows.unflatten(1, (-1, _BLOCK))
    largest = parts.abs().amax(dim=2, keepdim=True)
    # In torch a number over a tensor is the number times the reciprocal: rounded twice. BF16 values often lie exactly
    # between two of E4M3's; the scale's last bit then decides, and costs the worst of 1,728 rows 1 % of its norm.
    scale = torch.where(largest > 0, torch.full_like(largest, _LARGEST) / largest, torch.ones_like(largest))
    return ((parts * scale).to(torch.float8_e4m3fn).float() * (1.0 / scale)).flatten(1)


def offsets_of(counts: Sequence[int]) -> torch.Tensor:
    """Where each expert's rows begin, and where the last one's end."""
    ends = torch.tensor([0, *counts], dtype=torch.int64).cumsum(0)
    return ends.cuda()


def differences(result: torch.Tensor, base: torch.Tensor) -> dict[str, float | None]:
    """Norm of the difference over norm of the base: of everything, and of the worst row. None: not finite."""
    apart = (result.double() - base.double()).norm(dim=1)
    sizes = base.double().norm(dim=1)
    whole, worst = float(apart.norm() / sizes.norm()), float((apart / sizes).max())
    is_finite = bool(torch.isfinite(result).all())
    return {"error": whole if is_finite else None, "worst_row_error": worst if is_finite else None}


def check_rank(rank: Rank, *, tokens: int, counts: Sequence[int], shipped: int, corrected: int) -> list[dict[str, Any]]:
    """Per stage: both estimates against the reference, one against the other, and what FP8 activations cost alone."""
    answers = []
    offsets, rows = offsets_of(counts), sum(counts)
    for number in range(len(rank.stages)):
        results = []
        for estimate in (shipped, corrected):
            runner = rank.runner(tokens, estimate)
            rank.matrices[number].out.fill_(float("nan"))
            results.append(rank.run(runner, number, offsets)[:rows].clone())
            torch.cuda.synchronize()
            runner.close()
        reference, plain = rank.reference(number, counts)
        answers.append(
            {
                "stage": number + 1,
                "shipped_reference": differences(results[0], reference),
                "corrected_reference": differences(results[1], reference),
                "corrected_shipped": differences(results[1], results[0]),
                "is_equal": bool(torch.equal(results[0], results[1])),
                "rounding": differences(reference, plain),
            }
        )
    return answers


def time_rank(
    rank: Rank,
    *,
    cases: Sequence[Mapping[str, Any]],
    warm_ups: int,
    samples: int,
    seed: int,
    tell: Callable[[int], None],
) -> list[list[list[float]]]:
    """Seconds of FC1 and of FC2 per sample, for each {"tokens", "counts", "estimate"}.

    In each round every case once, in an order of the round's own; the first rounds are not counted.
    """
    runners = [rank.runner(case["tokens"], case["estimate"]) for case in cases]
    offsets = [offsets_of(case["counts"]) for case in cases]
    order = list(range(len(cases)))
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in cases]
    shuffled = random.Random(seed)  # noqa: S311 - an order, no secret
    for done in range(warm_ups + samples):
        shuffled.shuffle(order)
        marks = {}
        for number in order:
            marks[number] = _sample(rank, runners[number], offsets[number])
        torch.cuda.synchronize()
        if done >= warm_ups:
            for number, (first, second, third) in marks.items():
                times[number][0].append(first.elapsed_time(second) / 1e3)
                times[number][1].append(second.elapsed_time(third) / 1e3)
        tell(done + 1)
    for runner in runners:
        runner.close()
    return [list(each) for each in times]


def _sample(rank: Rank, runner: Runner, offsets: torch.Tensor) -> list[torch.cuda.Event]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    rank.flush()
    marks[0].record()
    for number in range(len(rank.stages)):
        rank.run(runner, number, offsets)
        marks[number + 1].record()
    return marks


def seen_kernels(rank: Rank, *, tokens: int, counts: Sequence[int], estimate: int) -> list[str]:
    """The names of the GEMM kernels that really ran, as the profiler saw them; empty where it sees nothing."""
    runner, offsets = rank.runner(tokens, estimate), offsets_of(counts)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for number in range(len(rank.stages)):
            rank.run(runner, number, offsets)
        torch.cuda.synchronize()
    runner.close()
    return sorted({each.name.partition("<")[0] for each in profile.events() if "fp8_gemm_kernel" in each.name})
