"""Power is read beside the load, by a process that may hang without anybody waiting. R27, R28."""

from __future__ import annotations

import asyncio
import stat
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import pytest

from gates.slo import DEFAULT_SLO
from gates.verdict import ProbeVerdict, judge_probe
from reports.power import PowerSample
from slo_bench.power.choice import Choice
from slo_bench.power.measuring import ALL_COUNTED, Power, PowerSource, measuring
from slo_bench.power.telemetry import READER, STOP_LIMIT_S
from traffic.probe import ProbeFacts

T = TypeVar("T")

SAMPLE = asdict(PowerSample(0.0, "GPU-a", 70.0, "instant", 0.0, 1980, 3201, 40, 0, 0.5, 0.0, 4))
HEADING = {"source": "NVML", "every_s": 0.01, "gpus": {"GPU-a": "A", "GPU-b": "B"}}
READS = f"""
import json, sys, time, select
print(json.dumps({HEADING}), flush=True)
began = time.monotonic()
while not select.select([sys.stdin], [], [], 0.01)[0]:
    now = time.monotonic()
    for uuid, watts in (("GPU-a", 600), ("GPU-b", 70)):
        held = 40_000 if uuid == "GPU-b" and now > began + 0.25 else 4
        print(json.dumps({{**{SAMPLE}, "uuid": uuid, "at_s": now, "power_w": watts, "energy_j": watts * now,
                          "memory_used_mib": held}}), flush=True)
"""
HANGS_AT_THE_END = f"{READS}\ntime.sleep(60)"
HANGS_AFTER_A_WHILE = READS.replace("    for uuid", "    if now > began + 0.4: time.sleep(60)\n    for uuid")


def source(program: str, **more: bool) -> PowerSource:
    return PowerSource((sys.executable, "-c", program), idle_s=0.1, **more)


def with_power(read: PowerSource, act: Callable[[Power], Awaitable[T]]) -> tuple[T, float]:
    """What comes of it, and how long the end took."""

    async def main() -> tuple[T, float]:
        async with measuring(read) as power:
            found = await act(power)
            left_s = time.monotonic()
        return found, time.monotonic() - left_s

    return asyncio.run(main())


async def window_of(power: Power, seconds: float, like: ProbeFacts) -> ProbeVerdict:
    """A window that ran just now for so long."""
    started_utc = like.started_utc.fromtimestamp(time.time(), tz=like.started_utc.tzinfo)
    await asyncio.sleep(seconds + 0.15)
    window = replace(like.window, window_start_s=0.0, window_end_s=seconds)
    facts = replace(like, window=window, started_utc=started_utc, load_s=seconds)
    power.server_is_up()
    return judge_probe(facts, DEFAULT_SLO)


@pytest.mark.process
def test_the_gpu_whose_memory_grows_is_the_servers_and_its_alone_is_counted(probe_facts: ProbeFacts) -> None:  # R27
    async def act(power: Power) -> None:
        await asyncio.sleep(0.3)
        power.server_is_up()
        found = power.window(await window_of(power, 0.4, probe_facts))
        assert found is not None
        assert found.gpus == ("GPU-b",)
        assert found.mean_w == pytest.approx(70.0, rel=0.02)
        document = power.document()
        assert [gpu.name for gpu in document.gpus] == ["B"]
        assert document.not_measured is None
        assert document.idle is not None
        assert document.idle.mean_w == pytest.approx(70.0, rel=0.05)
        assert document.windows[0].source == "counter"

    with_power(source(READS, by_memory=True), act)


@pytest.mark.process
def test_where_nobody_can_see_whose_gpus_they_are_all_count_and_it_is_said(probe_facts: ProbeFacts) -> None:
    async def act(power: Power) -> None:
        found = power.window(await window_of(power, 0.2, probe_facts))
        assert found is not None
        assert found.mean_w == pytest.approx(670.0, rel=0.02)
        assert power.document().notes == [ALL_COUNTED]

    with_power(source(READS, counts_all=True), act)


@pytest.mark.process
def test_a_reader_that_hangs_is_ended_and_delays_nobody() -> None:
    async def act(power: Power) -> None:
        assert power.not_measured is None

    _, stop_s = with_power(source(HANGS_AT_THE_END), act)
    assert stop_s < STOP_LIMIT_S + 1.5


@pytest.mark.process
def test_a_query_that_never_comes_back_costs_the_window_its_figure_and_no_time(probe_facts: ProbeFacts) -> None:
    async def act(power: Power) -> None:
        verdict = await window_of(power, 0.6, probe_facts)
        began_s = time.monotonic()
        found = power.window(verdict)
        assert time.monotonic() - began_s < 0.1
        assert found is not None
        assert (found.energy_j, found.mean_w) == (None, None)
        assert found.coverage_share < 0.9
        assert "power was read for" in found.flags[0]

    with_power(source(HANGS_AFTER_A_WHILE), act)


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import json; print(json.dumps({'reason': 'no driver'})); raise SystemExit(3)", "no driver"),
        ("raise SystemExit(1)", "its reader ended at once"),
    ],
)
def test_where_nothing_can_be_read_it_is_known_at_once_and_said(program: str, reason: str) -> None:
    async def act(power: Power) -> None:
        power.server_is_up()
        document = power.document()
        assert (document.not_measured, document.source, document.gpus) == (reason, None, [])

    began_s = time.monotonic()
    with_power(source(program), act)
    assert time.monotonic() - began_s < 3.0


def test_a_server_that_draws_no_power_starts_no_reader(probe_facts: ProbeFacts) -> None:
    async def act(power: Power) -> None:
        power.server_is_up()
        assert power.window(judge_probe(probe_facts, DEFAULT_SLO)) is None
        assert power.document().not_measured == "the engine is simulated"

    with_power(PowerSource(reason="the engine is simulated"), act)


SMI = """#!/bin/sh
case "$*" in
  *--query-compute-apps*) ;;
  *index,uuid*) echo '0, GPU-aa11, NVIDIA H200, 580.95, 40000'; echo '1, GPU-bb22, NVIDIA H200, 580.95, 4' ;;
  *) for gpu in aa11,600.00 bb22,70.00; do case "$*" in *GPU-${gpu%,*}*)
     echo "GPU-${gpu%,*}, ${gpu#*,} W, ${gpu#*,} W, 1980 MHz, 3201 MHz, 61, 0x0000000000000001, 97 %, 40000 MiB" ;;
     esac; done ;;
esac
"""
WITHOUT_NVML = (
    "import sys; sys.modules['pynvml'] = None; sys.argv = ['reader', *sys.argv[1:]]; "
    "from slo_bench.power.reader import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.process
@pytest.mark.parametrize(
    ("visible", "watts", "reason"),
    [
        ("1", 70.0, None),
        ("1,0", 670.0, None),
        ("GPU-bb22", 70.0, None),
        ("MIG-11111111-2222-3333-4444-555555555555", None, "a part of a GPU (MIG)"),
        ("", None, "hides every GPU"),
        ("7", None, "no GPU of this machine"),
    ],
)
def test_the_real_reader_resolves_what_the_server_sees(
    visible: str, watts: float | None, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R27
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    command = (sys.executable, "-c", WITHOUT_NVML, *Choice(visible=visible).arguments())

    async def act(power: Power) -> None:
        if reason is not None:
            assert reason in (power.not_measured or "")
            return
        assert power.not_measured is None
        assert power.document().source == "nvidia-smi"
        last = {each.uuid: each.power_w or 0.0 for each in power.samples}
        assert sum(last.values()) == watts

    with_power(PowerSource(command, idle_s=0.3), act)


@pytest.mark.process
def test_the_real_reader_ends_with_its_input() -> None:
    async def act(power: Power) -> None:
        assert power.document().source in (None, "NVML", "nvidia-smi")

    with_power(PowerSource(READER, idle_s=0.1), act)
