"""`python -m slo_bench.power.reader`: reads the GPUs ten times a second into a file, in a process of its own.

A query of the driver can take seconds, or never come back (R28's neighbours); here it delays nobody. It ends when its
standard input does, so it cannot outlive whoever started it. Lines of JSON: a sample each, as `reports.power` has it.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any, Literal

from reports.power import PowerSample

NVML_S, SMI_S = 0.1, 1.0
_SMI_LIMIT_S = 5.0
_INSTANT = "NVML_FI_DEV_POWER_INSTANT"
_SMI_FIELDS = (
    "uuid,power.draw.instant,power.draw.average,clocks.sm,clocks.mem,temperature.gpu,"
    "clocks_event_reasons.active,utilization.gpu"
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

Read = Callable[[], Iterator[PowerSample]]


def number(text: str) -> float | None:
    """A reading of nvidia-smi, with or without its unit; None for [N/A], ERR! and everything else that is none."""
    match = re.fullmatch(rf"\s*({_NUMBER.pattern})\s*(?:W|MHz|C|%)?\s*", text)
    return None if match is None else float(match[1])


def parse_smi(text: str, at_s: float) -> Iterator[PowerSample]:
    """Samples from nvidia-smi's CSV of _SMI_FIELDS."""
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != len(_SMI_FIELDS.split(",")):
            continue
        uuid, instant, average, sm, memory, heat, reasons, use = row
        instant_w = number(instant)
        utilization = number(use)
        yield PowerSample(
            at_s=at_s,
            uuid=uuid.strip(),
            power_w=number(average) if instant_w is None else instant_w,
            power_field="average" if instant_w is None else "instant",
            energy_j=None,
            sm_clock_mhz=_whole(number(sm)),
            memory_clock_mhz=_whole(number(memory)),
            temperature_c=_whole(number(heat)),
            event_reasons=int(reasons, 16) if re.fullmatch(r"0x[0-9A-Fa-f]+", reasons.strip()) else None,
            utilization_share=None if utilization is None else utilization / 100,
        )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def by_nvml(uuids: Sequence[str]) -> Read | None:
    """A reader of these GPUs by NVML; None where it does not answer. uuids: empty for all."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    all_handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    named = [(_text(nvml.nvmlDeviceGetUUID(handle)), handle) for handle in all_handles]
    chosen = [(uuid, handle) for uuid, handle in named if not uuids or uuid in uuids]

    def read() -> Iterator[PowerSample]:
        for uuid, handle in chosen:
            yield _nvml_sample(nvml, uuid, handle)

    return read if chosen else None


def _nvml_sample(nvml: ModuleType, uuid: str, handle: Any) -> PowerSample:
    def ask(name: str, *more: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *more)
        except (nvml.NVMLError, AttributeError):
            return None

    instant_mw = _instant_mw(nvml, handle)
    power_mw = ask("nvmlDeviceGetPowerUsage") if instant_mw is None else instant_mw
    energy_mj = ask("nvmlDeviceGetTotalEnergyConsumption")
    use = ask("nvmlDeviceGetUtilizationRates")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    return PowerSample(
        at_s=time.monotonic(),
        uuid=uuid,
        power_w=None if power_mw is None else power_mw / 1000,
        power_field="average" if instant_mw is None else "instant",
        energy_j=None if energy_mj is None else energy_mj / 1000,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        event_reasons=ask("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons,
        utilization_share=None if use is None else use.gpu / 100,
    )


def _instant_mw(nvml: ModuleType, handle: Any) -> float | None:
    field = getattr(nvml, _INSTANT, None)
    if field is None:
        return None
    try:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    except nvml.NVMLError:
        return None
    return float(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None


def by_smi(uuids: Sequence[str]) -> Read | None:
    """A reader by nvidia-smi; None where there is no such program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader"]
    if uuids:
        command.append(f"--id={','.join(uuids)}")

    def read() -> Iterator[PowerSample]:
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=False)
        except (OSError, subprocess.SubprocessError):
            return
        yield from parse_smi(answer.stdout, time.monotonic())

    return read


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def main(argv: Sequence[str]) -> int:
    """Read until standard input ends. argv: the UUIDs, none for all GPUs. 3: nothing here can be read."""
    source: Literal["NVML", "nvidia-smi"] = "NVML"
    read, every_s = by_nvml(argv), NVML_S
    if read is None:
        source, read, every_s = "nvidia-smi", by_smi(argv), SMI_S
    if read is None:
        return 3
    _tell({"source": source, "every_s": every_s})
    next_s = time.monotonic()
    while True:
        for sample in read():
            _tell(asdict(sample))
        next_s = max(next_s + every_s, time.monotonic())
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, next_s - time.monotonic()))
        if ready and not sys.stdin.buffer.read(1):
            return 0


def _tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
