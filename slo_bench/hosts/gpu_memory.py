"""GPU memory before and after a server: nobody else's before it starts, the same again after it has stopped.

A leftover that still holds the card makes the next server fail, or run with a smaller cache, and nothing says so (R29).
Where no NVIDIA driver answers there is nothing to prove, and nothing is claimed.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from traffic.errors import EngineError
from traffic.sse import one_line

_MIB = 1024 * 1024
_QUERY_LIMIT_S = 20.0
_UNSEEN_MIB = 1024
"""More than this held by no process that the driver shows is somebody's outside our view, in another container say."""

_MISMATCH = "driver/library version mismatch"
_REBOOT = "the NVIDIA driver was replaced while it was loaded (Driver/library version mismatch): reboot this machine"
_GPU_FIELDS = "index,uuid,name,driver_version,memory.used"
_APP_FIELDS = "gpu_uuid,pid,used_memory"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process on a GPU; used_mib: None where the driver does not say."""

    pid: int
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; index: the driver's, which is not the number that a program with CUDA_VISIBLE_DEVICES sees."""

    index: int
    uuid: str
    name: str
    used_mib: int
    processes: tuple[GpuProcess, ...] = ()

    def used_without(self, pids: Collection[int]) -> int:
        """MiB in use, less what these processes hold."""
        return self.used_mib - sum(each.used_mib or 0 for each in self.processes if each.pid in pids)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs of this machine at one moment."""

    driver: str
    gpus: tuple[Gpu, ...]


ReadGpus = Callable[[], GpuReading | None]


def read_gpus() -> GpuReading | None:
    """By NVML, else by nvidia-smi; None where neither answers. Raises EngineError for a driver that needs a reboot."""
    return _by_nvml() or _by_nvidia_smi()


def _by_nvml() -> GpuReading | None:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if _MISMATCH in str(error).lower():
            raise EngineError(_REBOOT) from None
        return None
    try:
        gpus = tuple(_nvml_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        return GpuReading(_text(nvml.nvmlSystemGetDriverVersion()), gpus)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _nvml_gpu(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    processes = tuple(
        GpuProcess(each.pid, None if each.usedGpuMemory is None else each.usedGpuMemory // _MIB)
        for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    )
    name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
    return Gpu(index, uuid, name, _nvml_memory(nvml, handle).used // _MIB, processes)


def _nvml_memory(nvml: ModuleType, handle: Any) -> Any:
    """The second version does not count what the driver reserves for itself, half a GiB on an H100."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, TypeError, AttributeError):
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _by_nvidia_smi() -> GpuReading | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    rows = _query(program, f"--query-gpu={_GPU_FIELDS}")
    if not rows:
        return None
    held: dict[str, list[GpuProcess]] = {}
    for uuid, pid, used in _query(program, f"--query-compute-apps={_APP_FIELDS}") or []:
        held.setdefault(uuid, []).append(GpuProcess(int(pid), int(used) if used.isdigit() else None))
    try:
        gpus = tuple(Gpu(int(row[0]), row[1], row[2], int(row[4]), tuple(held.get(row[1], ()))) for row in rows)
    except (ValueError, IndexError):
        return None
    return GpuReading(rows[0][3], gpus)


def _query(program: str, query: str) -> list[list[str]] | None:
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    if answer.returncode:
        if _MISMATCH in (answer.stdout + answer.stderr).lower():
            raise EngineError(_REBOOT)
        return None
    return [[value.strip() for value in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]


def check_driver(reading: GpuReading | None, least: str) -> None:
    """Raise EngineError for a driver older than `least`, or none. Compared by number: 580.95 is below 580.105 (R26)."""
    if reading is None:
        raise EngineError(f"no NVIDIA driver answers, and at least {least} is asked for; install it, or ask for none")
    if _numbers(reading.driver) < _numbers(least):
        raise EngineError(f"the NVIDIA driver is {reading.driver}, and at least {least} is asked for; update it")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def visible_gpus(reading: GpuReading, env: Mapping[str, str], count: int | None = None) -> tuple[Gpu, ...]:
    """The GPUs that a program with this environment sees, in its order; the first `count` of them.

    None are returned for a part of a GPU (MIG), whose memory is not read. Raises EngineError for a GPU that is not
    there, and for numbers that cannot be resolved: CUDA numbers unlike cards by their speed, the driver by their bus.
    """
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    gpus = reading.gpus
    by_speed = env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1
    if wanted is None:
        chosen = gpus
        uses_numbers = count is not None and count < len(gpus)
    else:
        words = [word.strip() for word in wanted.split(",") if word.strip()]
        if any(word.startswith("MIG-") for word in words):
            return ()
        if "-1" in words:  # as CUDA reads it: this one and all that follow are hidden
            words = words[: words.index("-1")]
        chosen = tuple(_named(gpus, word) for word in words)
        uses_numbers = any(word.isdigit() for word in words)
    if by_speed and uses_numbers:
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        raise EngineError(f"this machine has unlike GPUs ({names}): set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs")
    return chosen[:count]


def _named(gpus: tuple[Gpu, ...], word: str) -> Gpu:
    found = [gpu for gpu in gpus if (str(gpu.index) == word if word.isdigit() else gpu.uuid.startswith(word))]
    if len(found) != 1:
        there = ", ".join(f"{gpu.index} {gpu.uuid}" for gpu in gpus) or "none"
        raise EngineError(f"CUDA_VISIBLE_DEVICES names {word!r}, which is no GPU of this machine; it has: {there}")
    return found[0]


def _is_here(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def refuse_strangers(
    gpus: Collection[Gpu], own_pids: Collection[int], *, is_here: Callable[[int], bool] = _is_here
) -> None:
    """Raise EngineError, with each process and its MiB, when one that is not ours holds memory of these GPUs.

    Inside a container the driver shows no process, or numbers that mean nothing there (is_here tells). What such a one
    holds is a stranger's too, unless servers of ours run: it may be theirs.
    """
    held = []
    for gpu in gpus:
        others = [each for each in gpu.processes if each.pid not in own_pids]
        strangers = [each for each in others if not own_pids or is_here(each.pid)]
        sizes = [f"pid {each.pid} ({_size(each.used_mib)})" for each in strangers]
        if not gpu.processes and not own_pids and gpu.used_mib > _UNSEEN_MIB:
            sizes = [f"processes that cannot be seen from here ({_size(gpu.used_mib)})"]
        if sizes:
            held.append(f"GPU {gpu.index} ({gpu.name}) is held by {', '.join(sizes)}")
    if held:
        raise EngineError(f"{'; '.join(held)}, not of this run: end them, or choose another by CUDA_VISIBLE_DEVICES")


def _size(mib: int | None) -> str:
    return "unknown size" if mib is None else f"{mib:,} MiB"


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was in use before a server started: MiB by UUID, without what other servers of ours held."""

    driver: str
    used_mib: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GpuGuard:
    """Both proofs for one server.

    min_driver: the oldest driver that will do. count: how many of the visible GPUs the server takes, all when None.
    own_pids: the processes of this run's other servers, asked for at each reading. margin_mib: what may be in use above
    the baseline afterwards. samples, interval_s, limit_s: how often in a row, how far apart, and how long at most.
    """

    read: ReadGpus = read_gpus
    min_driver: str | None = None
    count: int | None = None
    own_pids: Callable[[], Collection[int]] = frozenset
    margin_mib: int = 300
    samples: int = 3
    interval_s: float = 1.0
    limit_s: float = 60.0

    async def before_start(self, env: Mapping[str, str]) -> Baseline | None:
        """Check driver and GPUs and read the baseline; None where there is no GPU to watch. Raises EngineError."""
        reading = await asyncio.to_thread(self.read)
        if self.min_driver is not None:
            check_driver(reading, self.min_driver)
        if reading is None or not (gpus := visible_gpus(reading, env, self.count)):
            return None
        own = self.own_pids()
        refuse_strangers(gpus, own)
        return Baseline(reading.driver, {gpu.uuid: gpu.used_without(own) for gpu in gpus})

    async def after_stop(self, baseline: Baseline | None) -> None:
        """Return when the memory is back at the baseline. Raises EngineError, with who holds it, after limit_s."""
        if baseline is None:
            return
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.limit_s
        in_a_row = 0
        while True:
            held = self._still_held(await asyncio.to_thread(self.read), baseline)
            in_a_row = 0 if held else in_a_row + 1
            if in_a_row >= self.samples:
                return
            if loop.time() >= deadline_s:
                what = held or "it was not seen at rest often enough"
                raise EngineError(f"GPU memory is not back {self.limit_s:g} s after the server was stopped: {what}")
            await asyncio.sleep(self.interval_s)

    def _still_held(self, reading: GpuReading | None, baseline: Baseline) -> str:
        if reading is None:
            return "the driver does not answer any more"
        own = self.own_pids()
        held = []
        for gpu in reading.gpus:
            before_mib = baseline.used_mib.get(gpu.uuid)
            if before_mib is None or gpu.used_without(own) <= before_mib + self.margin_mib:
                continue
            pids = ", ".join(str(each.pid) for each in gpu.processes if each.pid not in own) or "not shown"
            held.append(f"GPU {gpu.index} has {gpu.used_mib:,} MiB in use, {before_mib:,} before; pids {pids}")
        return one_line("; ".join(held))
