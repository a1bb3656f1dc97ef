"""Power is read beside the load, by a process that may hang without anybody waiting. R27, R28."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict

import pytest

from reports.power import PowerSample, SpanPower
from slo_bench.power.reader import number, parse_smi
from slo_bench.power.telemetry import READER, STOP_LIMIT_S, watching_power

SAMPLE = asdict(PowerSample(0.0, "GPU-a", 70.0, "instant", 0.0, 1980, 3201, 40, 0, 0.5))
READS = f"""
import json, sys, time, select
print(json.dumps({{"source": "NVML", "every_s": 0.01}}), flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    now = time.monotonic()
    print(json.dumps({{**{json.dumps(SAMPLE).replace("null", "None")}, "at_s": now, "energy_j": 70 * now}}), flush=True)
"""
HANGS = f"{READS}\ntime.sleep(60)"
NOTHING = "raise SystemExit(3)"


def watched(program: str, seconds: float) -> tuple[str | None, SpanPower | None, float]:
    async def main() -> tuple[str | None, SpanPower | None, float]:
        async with watching_power((), [sys.executable, "-c", program]) as power:
            start_s = time.monotonic()
            await asyncio.sleep(seconds)
            return power.source, power.between(start_s, start_s + seconds / 2), time.monotonic()

    source, span, left_s = asyncio.run(main())
    return source, span, time.monotonic() - left_s


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("312.45", 312.45),
        ("312.45 W", 312.45),
        ("1980 MHz", 1980.0),
        ("[N/A]", None),
        ("N/A", None),
        ("[Not Supported]", None),
        ("[Unknown Error]", None),
        ("ERR!", None),
        ("", None),
        ("nan", None),
    ],
)
def test_what_is_no_number_is_missing(text: str, value: float | None) -> None:  # R28
    assert number(text) == value


def test_nvidia_smis_rows_become_samples_and_name_the_field_that_was_read() -> None:
    text = (
        "GPU-a, 312.45 W, 300.00 W, 1980 MHz, 3201 MHz, 61, 0x0000000000000004, 97 %\n"
        "GPU-b, [N/A], 70.10 W, [N/A], 3201 MHz, 30, [N/A], 0 %\n"
        "half a line\n"
    )
    first, second = parse_smi(text, 5.0)
    assert (first.power_w, first.power_field, first.event_reasons) == (312.45, "instant", 4)
    assert first.utilization_share == 0.97
    assert (second.power_w, second.power_field, second.sm_clock_mhz) == (70.1, "average", None)
    assert second.event_reasons is None


@pytest.mark.process
def test_a_reader_at_work_gives_the_energy_of_a_span() -> None:
    source, span, _ = watched(READS, 0.4)
    assert source == "NVML"
    assert span is not None
    assert span.mean_w == pytest.approx(70.0, rel=0.02)


@pytest.mark.process
def test_a_reader_that_hangs_is_ended_and_delays_nobody() -> None:
    _, span, stop_s = watched(HANGS, 0.2)
    assert span is not None
    assert stop_s < STOP_LIMIT_S + 1.5


@pytest.mark.process
def test_where_nothing_can_be_read_nothing_is_measured_and_it_is_known_at_once() -> None:
    began_s = time.monotonic()
    assert watched(NOTHING, 0.0)[:2] == (None, None)
    assert time.monotonic() - began_s < 3.0


@pytest.mark.process
def test_the_real_reader_ends_with_its_input() -> None:
    async def main() -> None:
        async with watching_power((), READER) as power:
            assert power.source in (None, "NVML", "nvidia-smi")

    asyncio.run(main())
