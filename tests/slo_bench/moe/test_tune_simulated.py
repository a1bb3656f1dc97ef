"""The simulated kernel: its times are those of a tile, and what it times is said to be simulated."""

from __future__ import annotations

import asyncio

import pytest
from made_up_kernel import FP8, SHAPE

from slo_bench.moe.bench import Batch, Case, Effort, Layer
from slo_bench.moe.routing import concentrated, draw, uniform
from slo_bench.moe.shape import MoeShape
from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tune_simulated import SimulatedBench, SimulatedKernel, simulated_machines
from traffic.errors import UsageError
from traffic.virtual_time import run_virtual

FEW = Batch("uniform", 16, (draw(uniform(SHAPE), SHAPE, 16, seed=0),))
MANY = Batch("uniform", 4096, (draw(uniform(SHAPE), SHAPE, 4096, seed=0),))
SAME = Batch("concentrated-8-1", 16, (draw(concentrated(SHAPE), SHAPE, 16, seed=0),))
SMALL, LARGE = KernelConfig(16, 128, 128, 1, 4, 4), KernelConfig(128, 128, 128, 1, 4, 4)


def test_large_tiles_suit_many_tokens_and_few_experts_are_read_faster() -> None:
    kernel = SimulatedKernel(SHAPE, FP8)
    assert kernel.true_s(SMALL, MANY) > kernel.true_s(LARGE, MANY)
    assert kernel.true_s(SMALL, SAME) < kernel.true_s(SMALL, FEW)
    assert kernel.true_s(KernelConfig(256, 256, 128, 1, 4, 2), MANY) > 3 * kernel.true_s(LARGE, MANY)


def test_its_times_are_near_the_truth_and_take_time() -> None:
    bench = SimulatedBench(SimulatedKernel(SHAPE, FP8))

    async def timed() -> float:
        await bench.prepare(Layer(SHAPE, FP8), [FEW, MANY])
        (slow, cut) = await bench.time([Case(LARGE.entry(), MANY.name)] * 2, Effort(9, 3, is_graph=True))
        assert sorted(slow.times_s)[4] == pytest.approx(bench.kernel.true_s(LARGE, MANY), rel=0.03)
        assert cut.failure is None
        (none,) = await bench.time([Case(LARGE.entry(), MANY.name)], Effort(1, 3, is_graph=True, most_s=1e-6))
        assert none.times_s == ()
        return asyncio.get_running_loop().time()

    assert run_virtual(timed()) > bench.gpu_s
    assert bench.facts.is_simulated
    assert "SIMULATED" in bench.facts.device


def test_another_layer_is_refused() -> None:
    async def refused() -> None:
        machines = simulated_machines(SHAPE, FP8, compilers=1)
        bench = await machines.open_benches[0]()
        await bench.prepare(Layer(MoeShape(8, 768, 2048, 2), FP8), [])

    with pytest.raises(UsageError):
        run_virtual(refused())
