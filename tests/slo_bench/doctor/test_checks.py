"""What the doctor says of what it read; the texts are the kernel's."""

from __future__ import annotations

import pytest

from slo_bench.doctor import checks
from slo_bench.doctor.document import CheckRow, Fitness, HeldRow
from slo_bench.hosts.gpu_memory import Gpu, GpuReading
from slo_bench.power.check import PowerCheck

STAT = """cpu  {user} 0 100 8000 50 0 20 {steal} 0 0
cpu0 1 0 1 1 1 0 1 1 0 0
intr 12345
"""
CARD = GpuReading("580.159.04", (Gpu(0, "GPU-1", "NVIDIA H200", 0),))


def held(rate_rps: float, output_tokens: int, *, is_least: bool = False) -> HeldRow:
    return HeldRow(
        rate_rps=rate_rps,
        output_tokens=output_tokens,
        failed_rps=None if is_least else rate_rps * 1.1,
        is_least=is_least,
        send_lag_p99_s=0.0015,
        ttft_error_p99_s=0.0021,
    )


@pytest.mark.parametrize(
    ("row", "fitness", "figure", "remedy"),
    [
        (checks.open_files(20000), "ok", "20000, sure to carry 320.7 req/s", ""),
        (checks.open_files(1024), "warn", "1024, sure to carry 13.62 req/s", "raise the hard limit"),
        (checks.local_ports("32768\t60999\n"), "ok", "28232 (32768 to 60999)", ""),
        (checks.local_ports("60000\t60999\n"), "warn", "1000", "ip_local_port_range"),
        (checks.local_ports(None), "warn", "cannot be read", "by hand"),
        (checks.governor([]), "ok", "virtual machines", ""),
        (checks.governor(["performance", "performance"]), "ok", "performance", ""),
        (checks.governor(["performance", "powersave"]), "warn", "performance, powersave", "cpupower"),
        (checks.clock_source("tsc"), "ok", "tsc", ""),
        (checks.clock_source("kvm-clock"), "ok", "kvm-clock", ""),
        (checks.clock_source("acpi_pm"), "warn", "acpi_pm", "clocksource=tsc"),
        (checks.clock_source(None), "warn", "cannot be read", "by hand"),
        (checks.cores(4, 16, None), "ok", "4 of 16", ""),
        (checks.cores(4, 16, "max 100000"), "ok", "4 of 16", ""),
        (checks.cores(4, 16, "150000 100000"), "warn", "4 of 16, limited to the time of 1.5", "a second core"),
        (checks.cores(1, 16, None), "warn", "1 of 16", "a second core"),
        (checks.steal(STAT.format(user=0, steal=0), STAT.format(user=1000, steal=1)), "ok", "0.1 %", ""),
        (checks.steal(STAT.format(user=0, steal=0), STAT.format(user=900, steal=100)), "warn", "10.0 %", "your own"),
        (checks.steal("", ""), "warn", "cannot be read", "by hand"),
        (checks.clock_drift(0.002, 45.0), "ok", "+2.0 ms in 45 s", ""),
        (checks.clock_drift(-0.3, 45.0), "warn", "-300.0 ms", "time keeping"),
        (checks.clock_drift(2.0, 45.0), "bad", "+2000.0 ms", "time keeping"),
        (checks.gpus(None, None, ""), "ok", "no GPU seen", ""),
        (checks.gpus(CARD, "13.580.159", ""), "ok", "driver 580.159.04, 0 NVIDIA H200, NVML 13.580.159", ""),
        (checks.gpus(CARD, None, ""), "warn", "0 NVIDIA H200", "power is not read"),
        (checks.gpus(None, None, "reboot this machine"), "warn", "does not answer", "reboot"),
        (checks.no_vllm(), "ok", "none in this environment", ""),
        (checks.vllm("0.32.0", "13.0", ""), "ok", "0.32.0, CUDA 13.0", ""),
        (checks.vllm("0.32.0", None, ""), "ok", "without CUDA", ""),
        (checks.vllm(None, None, "it has no vLLM"), "warn", "cannot be used", "no vLLM"),
        (checks.idle(0.0009), "ok", "0.9 ms late", ""),
        (checks.pauses(0.0012), "ok", "1.2 ms at the longest", ""),
        (checks.pauses(0.054), "warn", "54.0 ms", "measure where nothing does"),
        (checks.idle(0.0043), "warn", "4.3 ms late", "taskset"),
    ],
)
def test_each_finding_has_its_fitness_figure_and_remedy(row: CheckRow, fitness: str, figure: str, remedy: str) -> None:
    assert (row.fitness, bool(row.remedy)) == (fitness, bool(remedy))
    assert figure in row.figure
    assert remedy in row.remedy
    assert "\n" not in row.figure + row.remedy


def test_the_client_tells_requests_tokens_and_chat_mix_between_them() -> None:
    row = checks.client(held(200, 16), held(50, 128), load_workers=1, cores=2)
    assert row.fitness is Fitness.OK
    assert "200.0 req/s with answers of 16 tokens, 6,400 tokens/s in answers of 128" in row.figure
    assert "chat-mix at 32.14 req/s, by 1 process" in row.figure
    assert "2.1 ms late" in row.figure


def test_a_search_that_time_ended_says_at_least() -> None:
    assert checks.client(held(200, 16), held(50, 128, is_least=True), load_workers=1, cores=2).figure.startswith(
        "at least"
    )


def test_a_client_that_a_default_sweep_would_outrun_is_a_warning() -> None:
    row = checks.client(held(30, 16), held(12, 128), load_workers=1, cores=2)
    assert row.fitness is Fitness.WARN
    assert "--load-workers" in row.remedy


def test_a_client_that_held_no_rate_cannot_measure() -> None:
    for pair in ((None, None), (held(200, 16), None), (None, held(50, 128))):
        assert checks.client(*pair, load_workers=1, cores=2).fitness is Fitness.BAD


@pytest.mark.parametrize(
    ("check", "fitness", "figure"),
    [
        (PowerCheck("no NVIDIA driver answers"), Fitness.OK, "not measured: no NVIDIA driver answers"),
        (
            PowerCheck(None, "NVML", 2, 158.2, 0.002, 1.0),
            Fitness.OK,
            "NVML, 2 GPUs, 158 W now, counter and integral agree within 0.2 %",
        ),
        (
            PowerCheck(None, "NVML", 1, 79.0, -0.08, 1.0),
            Fitness.WARN,
            "NVML, 1 GPU, 79.0 W now, counter and integral agree within 8.0 %",
        ),
        (
            PowerCheck(None, "nvidia-smi", 1, 79.0, None, 1.0),
            Fitness.OK,
            "nvidia-smi, 1 GPU, 79.0 W now, no energy counter to compare",
        ),
        (
            PowerCheck(None, "nvidia-smi", 1, None, None, 0.0),
            Fitness.WARN,
            "nvidia-smi, 1 GPU, not measured now, no energy counter to compare",
        ),
    ],
)
def test_power_is_told_with_how_well_it_is_known(check: PowerCheck, fitness: Fitness, figure: str) -> None:
    row = checks.power(check)
    assert (row.fitness, row.figure) == (fitness, figure)
    assert bool(row.remedy) == (fitness is not Fitness.OK)
