"""Power on a real GPU: the integral of what is sampled against the driver's own energy counter, under load and idle.

Needs an NVIDIA GPU, nvidia-ml-py, and a torch that reaches it, in this interpreter or in the one that
SLO_BENCH_GPU_PYTHON names. Without pytest, `PYTHONPATH=. python tests/gpu/test_power.py` runs every test and prints the
figures.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reports.power import SpanPower, span_power
from slo_bench.power.choice import ALL, Choice
from slo_bench.power.telemetry import READER, PowerWatch

try:
    import pytest
except ImportError:
    pass
else:
    pytestmark = pytest.mark.gpu

WINDOW_S = 20.0
MOST_GAP_SHARE = 0.03
LEAST_READS_PER_S = 9.0
START_LIMIT_S = 120.0

LOAD = """
import sys, time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print("ready", flush=True)
on_s, off_s = map(float, sys.argv[1:])
while True:
    end = time.monotonic() + on_s
    while time.monotonic() < end:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()
    time.sleep(off_s)
"""


@contextmanager
def load(on_s: float, off_s: float) -> Iterator[None]:
    """Multiplies matrices on the first GPU, on_s of each on_s + off_s seconds."""
    python = os.environ.get("SLO_BENCH_GPU_PYTHON", sys.executable)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    with subprocess.Popen(
        [python, "-c", LOAD, str(on_s), str(off_s)], stdout=subprocess.PIPE, text=True, env=env
    ) as it:
        assert it.stdout is not None
        try:
            has_said, _, _ = select.select([it.stdout], [], [], START_LIMIT_S)
            assert has_said, "the load did not start"
            assert it.stdout.readline().strip() == "ready", "no torch that reaches a GPU: set SLO_BENCH_GPU_PYTHON"
            yield
        finally:
            it.kill()


def watched(seconds: float, gpu: str = "0") -> tuple[SpanPower, int]:
    """A span of the driver's GPU 0, or of all, and how many readings each GPU had in it."""
    with tempfile.TemporaryDirectory() as folder:
        watch = PowerWatch([*READER, *Choice(named=(gpu,)).arguments()], Path(folder))
        try:
            watch.wait(20.0)
            assert watch.reading is not None, watch.reason
            assert watch.reading.source == "NVML"
            time.sleep(1.0)
            start_s = time.monotonic()
            time.sleep(seconds)
            end_s = time.monotonic()
            time.sleep(0.5)
            found = span_power(watch.samples, start_s, end_s, gpus=tuple(watch.reading.gpus))
            reads = sum(start_s <= each.at_s <= end_s for each in watch.samples) // len(watch.reading.gpus)
        finally:
            watch.stop()
    print(f"{found} {reads / seconds:.2f} readings/s")
    return found, reads


def check(found: SpanPower, reads: int) -> None:
    assert found.source == "counter"
    assert found.counter_gap_share is not None
    assert abs(found.counter_gap_share) <= MOST_GAP_SHARE
    assert found.coverage_share >= 0.98
    assert reads >= LEAST_READS_PER_S * WINDOW_S
    assert found.sm_clock_median_mhz is not None
    assert found.temperature_max_c is not None
    assert found.held_down is not None


def test_counter_and_integral_agree_under_steady_load() -> None:
    with load(1.0, 0.0):
        found, reads = watched(WINDOW_S)
    check(found, reads)
    assert found.utilization_mean_share is not None
    assert found.utilization_mean_share > 0.5


def test_counter_and_integral_agree_when_load_comes_and_goes() -> None:
    with load(1.3, 0.9):
        check(*watched(WINDOW_S))


def test_counter_and_integral_agree_on_gpus_without_load() -> None:
    check(*watched(WINDOW_S, ALL))


def test_the_gpu_of_a_process_is_found_by_its_memory() -> None:
    from slo_bench.power.measuring import PowerSource, measuring  # noqa: PLC0415 - it needs more libraries

    async def main() -> None:
        source = PowerSource((*READER, *Choice().arguments()), by_memory=True, idle_s=2.0)
        async with measuring(source) as power:
            with load(1.0, 0.0):
                await asyncio.sleep(1.0)
                power.server_is_up()
                document = power.document()
        print(document)
        assert document.not_measured is None
        assert len(document.gpus) == 1
        assert document.idle is not None
        assert document.idle.mean_w is not None

    asyncio.run(main())


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name)
            test()
