"""`slo-bench doctor`: whether this client, host and GPU are fit to measure."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from reports.run_directory import to_json
from slo_bench.config import DoctorOptions
from slo_bench.doctor import checks
from slo_bench.doctor.client import (
    IDLE_S,
    PAUSE_S,
    find_ceilings,
    idle_lateness_s,
    lag_limit_s,
    longest_pause_s,
    null_client,
)
from slo_bench.doctor.document import (
    DOCTOR_VERSION,
    CheckRow,
    DoctorDocument,
    HeldRow,
    doctor_path,
    keep_doctor,
    this_client,
)
from slo_bench.hosts.gpu_memory import read_gpus
from slo_bench.hosts.launch import find_vllm
from slo_bench.power.check import read_power
from traffic.clock import running_clock
from traffic.errors import EngineError
from traffic.file_limit import raise_file_limit

UNFIT = 3

_CPU = Path("/sys/devices/system/cpu")
_CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_STAT = Path("/proc/stat")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CUDA_LIMIT_S = 20.0
_ASK_CUDA = """
import importlib.util, pathlib, runpy
torch = importlib.util.find_spec("torch")
print(runpy.run_path(str(pathlib.Path(torch.origin).with_name("version.py"))).get("cuda") or "")
"""
"""Reads the file: importing torch takes seconds."""


async def doctor(options: DoctorOptions) -> int:
    """Look, tell, and keep what was found: 0 when this client can measure, 3 when it cannot."""
    rows: list[CheckRow] = []
    clock = running_clock()
    measured_utc = clock.utc().isoformat()
    examination = _Examination(options)
    async for row in examination.rows():
        rows.append(row)
        if not options.json_:
            sys.stdout.write(f"{line(row)}\n")
            sys.stdout.flush()
    document = DoctorDocument(
        schema_version=DOCTOR_VERSION,
        key=this_client(),
        measured_utc=measured_utc,
        load_workers=options.load_workers,
        short=examination.short,
        long=examination.long,
        checks=rows,
    )
    keep_doctor(doctor_path(os.environ, Path.home()), document)
    if options.json_:
        sys.stdout.write(to_json(document))
    return 0 if document.is_fit else UNFIT


def line(row: CheckRow) -> str:
    """A finding in one line."""
    remedy = f": {row.remedy}" if row.remedy else ""
    return f"{row.fitness:4}  {row.name:13}  {row.figure}{remedy}"


class _Examination:
    """All checks, one after the other; the client's ceilings when they are through."""

    def __init__(self, options: DoctorOptions) -> None:
        self._options = options
        self.short: HeldRow | None = None
        self.long: HeldRow | None = None

    async def rows(self) -> AsyncIterator[CheckRow]:
        """A row as soon as it is known; the slow ones come last."""
        yield checks.open_files(raise_file_limit())
        yield checks.local_ports(_read(_PORTS))
        yield checks.governor(_governors())
        yield checks.clock_source(_read(_CLOCK))
        yield checks.cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, _read(_QUOTA))
        yield await _gpu_row()
        yield checks.power(await read_power())
        yield await _vllm_row(self._options.vllm_python)
        idle_late_s = await idle_lateness_s(min(IDLE_S, self._options.seconds / 4))
        yield checks.idle(idle_late_s)
        clock, stat = running_clock(), _read(_STAT) or ""
        began_s, offset_s = clock.now_s(), clock.utc_s() - clock.now_s()
        options = self._options
        limit_s = lag_limit_s(idle_late_s)
        async with null_client(load_workers=options.load_workers, seconds=options.seconds, limit_s=limit_s) as look_at:
            self.short, self.long = await find_ceilings(look_at, seconds=options.seconds)
        yield checks.pauses(longest_pause_s(PAUSE_S))
        yield checks.steal(stat, _read(_STAT) or "")
        yield checks.clock_drift(clock.utc_s() - clock.now_s() - offset_s, clock.now_s() - began_s)
        usable = len(os.sched_getaffinity(0))
        yield checks.client(self.short, self.long, load_workers=options.load_workers, cores=usable)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _governors() -> list[str]:
    texts = (_read(path) for path in _CPU.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return [text for text in texts if text]


async def _gpu_row() -> CheckRow:
    try:
        reading = await asyncio.to_thread(read_gpus)
    except EngineError as error:
        return checks.gpus(None, None, str(error))
    return checks.gpus(reading, None if reading is None else _nvml_version(), "")


def _nvml_version() -> str | None:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        version = nvml.nvmlSystemGetNVMLVersion()
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    return version.decode() if isinstance(version, bytes) else str(version)


async def _vllm_row(python: Path | None) -> CheckRow:
    """The vLLM of another interpreter, or of this one where it has any."""
    if python is None and importlib.util.find_spec("vllm") is None:
        return checks.no_vllm()
    python = python or Path(sys.executable)
    try:
        found = await find_vllm(python, os.environ)
    except EngineError as error:
        return checks.vllm(None, None, str(error))
    return checks.vllm(found.version, await _cuda(python), "")


async def _cuda(python: Path) -> str | None:
    """The CUDA version that an interpreter's torch was built for; None for none."""
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        python, "-c", _ASK_CUDA, stdout=asyncio.subprocess.PIPE, stderr=quiet
    )
    output = b""
    try:
        async with asyncio.timeout(_CUDA_LIMIT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return output.decode(errors="replace").strip() or None
