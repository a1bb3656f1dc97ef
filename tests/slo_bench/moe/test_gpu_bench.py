"""The client of the kernel process, against a process that speaks the same protocol without a GPU."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import fake_kernel_worker as fake
import pytest

from slo_bench.moe.bench import Batch, Case, Effort, Layer
from slo_bench.moe.gpu_bench import GpuBench, GpuPlace, Limits, start_bench, start_compiler
from slo_bench.moe.routing import draw, uniform
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.space import KernelConfig
from traffic.errors import EngineError, UsageError

SHAPE, FP8 = MoeShape(128, 768, 2048, 8), Quantisation("fp8_w8a8", (128, 128))
LAYER = Layer(SHAPE, FP8)
BATCHES = [Batch("uniform", size, (draw(uniform(SHAPE), SHAPE, size, seed=0),)) for size in (1, 16)]
FEW = Effort(rounds=3, calls=2, is_graph=True)


def place(folder: Path, **limits: float) -> GpuPlace:
    return GpuPlace(Path(sys.executable), folder, program=Path(fake.__file__), limits=Limits(**limits))


def entry(block_m: int) -> dict[str, int]:
    return KernelConfig(block_m, 64, 128, 1, 4, 3).entry()


def case(block_m: int) -> Case:
    return Case(entry(block_m), (16, "uniform"))


def with_bench(where: GpuPlace, use: Callable[[GpuBench], Awaitable[None]]) -> None:
    async def run() -> None:
        bench = await start_bench(where)
        try:
            await use(bench)
        finally:
            await bench.close()

    asyncio.run(run())


@pytest.mark.process
def test_a_conversation_from_facts_to_times(tmp_path: Path) -> None:
    async def use(bench: GpuBench) -> None:
        assert bench.facts.device == "NVIDIA H200"
        assert bench.facts.config_folder == Path("/nowhere/configs")
        await bench.prepare(LAYER, BATCHES)
        checked = await bench.check([case(16), case(fake.FAILS)])
        assert [each.relative_error for each in checked] == [0.03, None]
        timed = await bench.time([case(fake.FAILS), case(16)], FEW)
        assert [len(each.times_s) for each in timed] == [0, 3]
        assert timed[0].failure == "OutOfResources: shared memory"
        assert [each.case for each in timed] == [case(fake.FAILS), case(16)]

    with_bench(place(tmp_path), use)
    assert "a library prints" in (tmp_path / "bench.log").read_text()


@pytest.mark.process
def test_a_process_that_dies_is_an_engine_error_with_its_cause(tmp_path: Path) -> None:
    async def use(bench: GpuBench) -> None:
        await bench.prepare(LAYER, BATCHES)
        with pytest.raises(EngineError, match="illegal memory access") as caught:
            await bench.time([case(fake.DIES)], FEW)
        assert "\n" not in str(caught.value)
        with pytest.raises(EngineError, match="given up before"):
            await bench.time([case(16)], FEW)

    with_bench(place(tmp_path), use)


@pytest.mark.process
def test_silence_has_a_deadline_and_the_process_is_ended(tmp_path: Path) -> None:
    pids: list[int] = []

    async def use(bench: GpuBench) -> None:
        pids.append(bench._worker._process.pid)
        with pytest.raises(EngineError, match=r"said nothing for 0\.2 s at check"):
            await bench.check([case(fake.HANGS)])

    with_bench(place(tmp_path, measure_s=0.2), use)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.process
def test_what_the_process_refuses_is_the_callers_fault_and_it_goes_on(tmp_path: Path) -> None:
    async def use(bench: GpuBench) -> None:
        with pytest.raises(UsageError, match="free the GPU"):
            await bench.prepare(replace(LAYER, weight_sets=101), BATCHES)
        await bench.prepare(LAYER, BATCHES)

    with_bench(place(tmp_path), use)


@pytest.mark.process
def test_a_compiler_says_how_long_it_took_or_why_not(tmp_path: Path) -> None:
    async def run() -> None:
        compiler = await start_compiler(place(tmp_path), LAYER, BATCHES)
        try:
            done = await compiler.compile(entry(16))
            assert (done.took_s, done.failure) == (1.5, None)
            assert (await compiler.compile(entry(fake.FAILS))).failure == "OutOfResources: shared memory"
        finally:
            await compiler.close()

    asyncio.run(run())


@pytest.mark.process
def test_an_interpreter_without_vllm_is_one_line_with_the_log(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text("import vllm_that_is_not_there\n")
    with pytest.raises(EngineError, match=r"No module named 'vllm_that_is_not_there'.*bench.log"):
        asyncio.run(start_bench(replace(place(tmp_path), program=program)))
    with pytest.raises(EngineError, match="cannot start"):
        asyncio.run(start_bench(replace(place(tmp_path), python=tmp_path / "python")))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Layer(SHAPE, Quantisation("int8_w8a16")), "int8_w8a16 cannot be timed"),
        (Layer(SHAPE, Quantisation("fp8_w8a8", (64, 64))), "fp8_w8a8 with other blocks"),
        (Layer(MoeShape(8, 96, 256, 2), FP8), "N and K that 128 divides, and they are 96, 256"),
    ],
)
def test_a_layer_that_cannot_be_timed_is_refused_before_anything_starts(
    layer: Layer, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        asyncio.run(start_compiler(place(tmp_path), layer, BATCHES))
    assert not list(tmp_path.iterdir())


def test_a_compilers_libraries_keep_to_one_core_and_all_share_a_cache(tmp_path: Path) -> None:
    where = replace(place(tmp_path), cache=tmp_path / "cache", gpu="GPU-1")
    assert where.environment(is_compiler=True)["OMP_NUM_THREADS"] == "1"
    for is_compiler in (False, True):
        env = where.environment(is_compiler=is_compiler)
        assert (env["TRITON_CACHE_DIR"], env["CUDA_VISIBLE_DEVICES"]) == (str(tmp_path / "cache"), "GPU-1")
