"""`python -m slo_bench.power.reader`: reads the GPUs ten times a second into a file, in a process of its own.

A query of the driver can take seconds, or never come back; here it delays nobody. It ends when its standard input does,
so it cannot outlive whoever started it. Lines of JSON: first what is read ("source", "every_s", "gpus") or why nothing
is ("reason"), then a sample each, as `reports.power` has it.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, Literal

from reports.power import PowerSample
from slo_bench.hosts.gpu_memory import read_gpus
from slo_bench.power.choice import ALL, Choice, choice, chosen
from slo_bench.power.dcgm import ENERGY, POWER, Page
from traffic.errors import EngineError

NVML_S, SMI_S, DCGM_S = 0.1, 1.0, 1.0
_SMI_LIMIT_S = 5.0
_MIB = 1024 * 1024
_INSTANT = "NVML_FI_DEV_POWER_INSTANT"
_SMI_FIELDS = (
    "uuid,power.draw.instant,power.draw.average,clocks.sm,clocks.mem,temperature.gpu,"
    "clocks_event_reasons.active,utilization.gpu,memory.used"
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

Read = Callable[[], Iterator[PowerSample]]


class NothingToReadError(Exception):
    """Why nothing here can be read, in half a sentence."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, and how. gpus: name by UUID."""

    name: Literal["NVML", "nvidia-smi", "DCGM"]
    every_s: float
    gpus: Mapping[str, str]
    read: Read


def number(text: str) -> float | None:
    """A reading of nvidia-smi, with or without its unit; None for [N/A], ERR! and everything else that is none."""
    match = re.fullmatch(rf"\s*({_NUMBER.pattern})\s*(?:W|MHz|MiB|C|%)?\s*", text)
    return None if match is None else float(match[1])


def parse_smi(text: str, at_s: float) -> Iterator[PowerSample]:
    """Samples from nvidia-smi's CSV of _SMI_FIELDS."""
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != len(_SMI_FIELDS.split(",")):
            continue
        uuid, instant, average, sm, memory, heat, reasons, use, held = row
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
            utc_s=time.time(),
            memory_used_mib=_whole(number(held)),
        )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def by_nvml(uuids: Sequence[str]) -> Read | None:
    """A reader of these GPUs by NVML; None where it does not answer. NothingToReadError for one that is split."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    named = [(_text(nvml.nvmlDeviceGetUUID(handle)), handle) for handle in handles]
    wanted = [(uuid, handle) for uuid, handle in named if uuid in uuids]
    for uuid, handle in wanted:
        if _is_split(nvml, handle):
            raise NothingToReadError(f"{uuid} is split (MIG), and only the whole card's power can be read")

    def read() -> Iterator[PowerSample]:
        for uuid, handle in wanted:
            yield _nvml_sample(nvml, uuid, handle)

    return read if wanted else None


def _is_split(nvml: ModuleType, handle: Any) -> bool:
    try:
        now, _ = nvml.nvmlDeviceGetMigMode(handle)
    except (nvml.NVMLError, AttributeError):
        return False
    return bool(now == nvml.NVML_DEVICE_MIG_ENABLE)


def _nvml_sample(nvml: ModuleType, uuid: str, handle: Any) -> PowerSample:
    def ask(name: str, *more: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *more)
        except (nvml.NVMLError, AttributeError):
            return None

    instant_mw = _instant_mw(nvml, handle)
    power_mw = ask("nvmlDeviceGetPowerUsage") if instant_mw is None else instant_mw
    energy_mj = ask("nvmlDeviceGetTotalEnergyConsumption")
    use, memory = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetMemoryInfo")
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
        utc_s=time.time(),
        memory_used_mib=None if memory is None else memory.used // _MIB,
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
    """A reader of these GPUs by nvidia-smi; None where there is no such program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader", f"--id={','.join(uuids)}"]

    def read() -> Iterator[PowerSample]:
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=False)
        except (OSError, subprocess.SubprocessError):
            return
        yield from parse_smi(answer.stdout, time.monotonic())

    return read


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def find_source(wanted: Choice) -> Source:
    """What can be read of the GPUs that are wanted. Raises NothingToReadError."""
    if wanted.dcgm_url is not None:
        return _dcgm(wanted.dcgm_url, wanted.named)
    try:
        gpus, reason = chosen(read_gpus(), wanted)
    except EngineError as error:
        raise NothingToReadError(str(error)) from None
    if not gpus:
        raise NothingToReadError(reason)
    named = {gpu.uuid: gpu.name for gpu in gpus}
    read = by_nvml(tuple(named))
    if read is not None:
        return Source("NVML", NVML_S, named, read)
    read = by_smi(tuple(named))
    if read is None:
        raise NothingToReadError("neither NVML nor nvidia-smi answers")
    return Source("nvidia-smi", SMI_S, named, read)


def _dcgm(url: str, named: Sequence[str]) -> Source:
    """An exporter's GPUs. Its page is asked for twice as often as it is said to change, to be there when it does."""
    page = Page(url)
    found = page.look()
    if found is None:
        raise NothingToReadError(f"{url} gives no page of a dcgm-exporter")
    gpus, names, is_split = found
    if is_split:
        raise NothingToReadError(f"{url} has a GPU that is split (MIG), and only the whole card's power can be read")
    wanted = {uuid: names[uuid] for uuid in gpus if not named or ALL in named or uuid.startswith(tuple(named))}
    if not wanted:
        raise NothingToReadError(f"{url} has no GPU {' or '.join(named)}" if named else f"{url} shows no GPU")
    if not any(values.keys() & {POWER, ENERGY} for values in gpus.values()):
        raise NothingToReadError(f"{url} shows neither {POWER} nor {ENERGY}")
    return Source("DCGM", DCGM_S, wanted, lambda: page.samples(tuple(wanted)))


def main(argv: Sequence[str]) -> int:
    """Read until standard input ends. argv: as `Choice.arguments`. 3: nothing can be read, and the output says why."""
    try:
        source = find_source(choice(argv))
    except NothingToReadError as error:
        _tell({"reason": str(error)})
        return 3
    _tell({"source": source.name, "every_s": source.every_s, "gpus": dict(source.gpus)})
    step_s = source.every_s / 2 if source.name == "DCGM" else source.every_s
    next_s = time.monotonic()
    while True:
        for sample in source.read():
            _tell(asdict(sample))
        next_s = max(next_s + step_s, time.monotonic())
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, next_s - time.monotonic()))
        if ready and not sys.stdin.buffer.read(1):
            return 0


def _tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
