"""GPU memory without a GPU: every reading is made up, the programs that give one are stand-ins."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from slo_bench.hosts.gpu_memory import (
    Baseline,
    Gpu,
    GpuGuard,
    GpuProcess,
    GpuReading,
    check_driver,
    read_gpus,
    refuse_strangers,
    visible_gpus,
)
from traffic.errors import EngineError

DRIVER = "580.159.04"


def gpu(index: int = 0, used_mib: int = 0, *holders: tuple[int, int | None], name: str = "NVIDIA H200") -> Gpu:
    return Gpu(index, f"GPU-{index}{index}-abcd", name, used_mib, tuple(GpuProcess(*each) for each in holders))


def reading(*gpus: Gpu) -> GpuReading:
    return GpuReading(DRIVER, gpus)


def in_turn(*readings: GpuReading | None) -> Callable[[], GpuReading | None]:
    left = list(readings)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def guard(*readings: GpuReading | None, own: frozenset[int] = frozenset(), **settings: object) -> GpuGuard:
    quick = {"interval_s": 0.001, "limit_s": 10.0, **settings}
    return GpuGuard(read=in_turn(*readings), own_pids=lambda: own, **quick)  # type: ignore[arg-type]


class TestDriver:
    @pytest.mark.parametrize(("driver", "least"), [("580.105.08", "580.95"), ("580.95", "580.95"), ("600", "580.159")])
    def test_versions_compare_by_number_r26(self, driver: str, least: str) -> None:
        check_driver(GpuReading(driver, ()), least)

    @pytest.mark.parametrize(("driver", "least"), [("580.95.05", "580.105"), ("570.1", "580"), ("580", "580.1")])
    def test_an_older_one_is_refused(self, driver: str, least: str) -> None:
        with pytest.raises(EngineError, match=f"driver is {driver}, and at least {least} is asked for; update it"):
            check_driver(GpuReading(driver, ()), least)

    def test_one_is_asked_for_where_none_answers(self) -> None:
        with pytest.raises(EngineError, match="no NVIDIA driver answers, and at least 580 is asked for"):
            asyncio.run(guard(None, min_driver="580").before_start({}))


class TestVisible:
    def test_without_the_variable_all_and_of_these_as_many_as_the_server_takes(self) -> None:
        both = reading(gpu(0), gpu(1))
        assert [each.index for each in visible_gpus(both, {})] == [0, 1]
        assert [each.index for each in visible_gpus(both, {}, 1)] == [0]

    @pytest.mark.parametrize(
        ("value", "indexes"),
        [
            ("1", [1]),
            ("2,0", [2, 0]),
            ("GPU-22", [2]),
            ("GPU-11-abcd, 0", [1, 0]),
            ("", []),
            ("-1", []),
            ("1,-1,0", [1]),
            ("MIG-11111111-2222-3333-4444-555555555555", []),
        ],
    )
    def test_numbers_and_uuids_in_their_order_r27(self, value: str, indexes: list[int]) -> None:
        three = reading(gpu(0), gpu(1), gpu(2))
        assert [each.index for each in visible_gpus(three, {"CUDA_VISIBLE_DEVICES": value})] == indexes

    @pytest.mark.parametrize("value", ["7", "GPU-9", "GPU-"])
    def test_one_that_is_not_there_or_not_the_only_one_is_refused(self, value: str) -> None:
        with pytest.raises(EngineError, match=f"names '{value}', which is no GPU of this machine; it has: 0 GPU-00-"):
            visible_gpus(reading(gpu(0), gpu(1)), {"CUDA_VISIBLE_DEVICES": value})

    def test_numbers_of_unlike_gpus_mean_nothing_until_their_order_is_said(self) -> None:
        unlike = reading(gpu(0, name="NVIDIA T4"), gpu(1))
        with pytest.raises(EngineError, match=r"unlike GPUs \(NVIDIA H200, NVIDIA T4\): set CUDA_DEVICE_ORDER=PCI"):
            visible_gpus(unlike, {"CUDA_VISIBLE_DEVICES": "1"})
        with pytest.raises(EngineError, match="unlike GPUs"):
            visible_gpus(unlike, {}, 1)
        ordered = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert [each.index for each in visible_gpus(unlike, ordered)] == [1]
        assert [each.index for each in visible_gpus(unlike, {"CUDA_VISIBLE_DEVICES": "GPU-11"})] == [1]


class TestBeforeStart:
    def test_a_free_gpu_gives_its_baseline(self) -> None:
        baseline = asyncio.run(guard(reading(gpu(0, 4))).before_start({}))
        assert baseline == Baseline(DRIVER, {"GPU-00-abcd": 4})

    def test_without_a_gpu_nothing_is_claimed(self) -> None:
        assert asyncio.run(guard(None).before_start({})) is None
        assert asyncio.run(guard(reading(gpu(0, 9_000, (7, 9_000)))).before_start({"CUDA_VISIBLE_DEVICES": ""})) is None

    def test_one_that_a_stranger_holds_is_refused_with_who_and_how_much(self) -> None:
        held = reading(gpu(0, 73_000, (41, 72_100), (42, None)), gpu(1, 500, (43, 480)))
        text = (
            r"GPU 0 \(NVIDIA H200\) is held by pid 41 \(72,100 MiB\), pid 42 \(unknown size\); "
            r"GPU 1 .* by pid 43 \(480 MiB\), not of this run: end them, or choose another by CUDA_VISIBLE_DEVICES"
        )
        with pytest.raises(EngineError, match=text):
            asyncio.run(guard(held).before_start({}))
        assert asyncio.run(guard(held, reading(gpu(2))).before_start({"CUDA_VISIBLE_DEVICES": ""})) is None

    def test_one_that_only_our_other_servers_hold_is_free_less_what_they_hold(self) -> None:
        held = reading(gpu(0, 30_100, (41, 30_000)))
        baseline = asyncio.run(guard(held, own=frozenset((41,))).before_start({}))
        assert baseline == Baseline(DRIVER, {"GPU-00-abcd": 100})

    def test_memory_of_nobody_who_can_be_seen_is_a_strangers_unless_servers_of_ours_run(self) -> None:
        held = reading(gpu(0, 71_000))
        with pytest.raises(EngineError, match=r"processes that cannot be seen from here \(71,000 MiB\)"):
            asyncio.run(guard(held).before_start({}))
        assert asyncio.run(guard(held, own=frozenset((41,))).before_start({})) is not None

    def test_a_number_from_outside_the_container_may_be_a_server_of_ours(self) -> None:
        held = [gpu(0, 71_000, (4_000_000, 70_000))]
        refuse_strangers(held, {41}, is_here=lambda _: False)
        with pytest.raises(EngineError, match="pid 4000000"):
            refuse_strangers(held, {41}, is_here=lambda _: True)
        with pytest.raises(EngineError, match="pid 4000000"):
            refuse_strangers(held, set(), is_here=lambda _: False)


class TestAfterStop:
    BEFORE = Baseline(DRIVER, {"GPU-00-abcd": 100})

    def test_it_waits_until_three_readings_in_a_row_are_back(self) -> None:
        left = [70_000, 300, 70_000, 400, 390, 380, 70_000]
        readings = (reading(gpu(0, left.pop(0))) for _ in range(len(left)))
        waiting = GpuGuard(read=lambda: next(readings), interval_s=0.001, limit_s=10.0)
        asyncio.run(waiting.after_stop(self.BEFORE))
        assert left == [70_000]

    def test_without_a_baseline_there_is_nothing_to_prove(self) -> None:
        asyncio.run(guard(None).after_stop(None))

    def test_memory_that_stays_is_an_engine_error_with_who_holds_it(self) -> None:
        stuck = guard(reading(gpu(0, 70_000, (41, 69_000))), limit_s=0.05)
        text = r"not back 0\.05 s after .*: GPU 0 has 70,000 MiB in use, 100 before; pids 41"
        with pytest.raises(EngineError, match=text):
            asyncio.run(stuck.after_stop(self.BEFORE))

    def test_the_margin_is_part_of_the_baseline(self) -> None:
        asyncio.run(guard(reading(gpu(0, 400))).after_stop(self.BEFORE))
        with pytest.raises(EngineError, match="pids not shown"):
            asyncio.run(guard(reading(gpu(0, 401)), limit_s=0.0).after_stop(self.BEFORE))

    def test_another_server_of_ours_that_came_later_does_not_count(self) -> None:
        asyncio.run(guard(reading(gpu(0, 30_100, (42, 30_000))), own=frozenset((42,))).after_stop(self.BEFORE))

    def test_a_driver_that_stops_answering_proves_nothing(self) -> None:
        with pytest.raises(EngineError, match="the driver does not answer any more"):
            asyncio.run(guard(None, limit_s=0.0).after_stop(self.BEFORE))

    def test_only_gpus_of_the_server_are_looked_at(self) -> None:
        asyncio.run(guard(reading(gpu(0, 100), gpu(1, 70_000, (9, 70_000)))).after_stop(self.BEFORE))


class NvmlError(Exception):
    pass


def nvml(**changes: object) -> SimpleNamespace:
    """A driver's library with one GPU."""
    process = SimpleNamespace(pid=41, usedGpuMemory=2 * 1024**2)
    hidden = SimpleNamespace(pid=42, usedGpuMemory=None)
    functions = {
        "NVMLError": NvmlError,
        "nvmlMemory_v2": 2,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: DRIVER,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [process, hidden],
        "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
        "nvmlDeviceGetUUID": lambda _: "GPU-00-abcd",
        "nvmlDeviceGetMemoryInfo": lambda _, version=1: SimpleNamespace(used=(3 if version == 2 else 600) * 1024**2),
    }
    return SimpleNamespace(**functions | changes)


def refuse(text: str) -> Callable[..., object]:
    def raising(*_: object, **__: object) -> object:
        raise NvmlError(text)

    return raising


SMI = """#!/bin/sh
case "$1" in
*compute-apps*) {apps} ;;
*) {gpus} ;;
esac
"""
GPUS = "echo '0, GPU-00-abcd, NVIDIA H200, 580.159.04, 3'; echo '1, GPU-11-abcd, NVIDIA H200, 580.159.04, 600'"
APPS = "echo 'GPU-11-abcd, 41, 590'; echo 'GPU-11-abcd, 42, [N/A]'"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a stand-in for nvidia-smi on PATH, alone, and NVML out of reach."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)

    def put(gpus: str = GPUS, apps: str = APPS) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(SMI.format(gpus=gpus, apps=apps))
        path.chmod(0o755)

    return put


@pytest.mark.usefixtures("smi")
class TestNvml:
    def read(self, monkeypatch: pytest.MonkeyPatch, **changes: object) -> GpuReading | None:
        monkeypatch.setitem(sys.modules, "pynvml", nvml(**changes))
        return read_gpus()

    def test_it_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.read(monkeypatch) == reading(gpu(0, 3, (41, 2), (42, None)))

    def test_an_old_library_knows_one_kind_of_memory_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.read(monkeypatch, nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=600 * 1024**2))
        assert found is not None
        assert found.gpus[0].used_mib == 600

    def test_no_driver_is_no_reading(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.read(monkeypatch, nvmlInit=refuse("NVML Shared Library Not Found")) is None
        assert self.read(monkeypatch, nvmlDeviceGetName=refuse("Unknown Error")) is None

    def test_a_replaced_driver_needs_a_reboot_r26(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(EngineError, match="reboot this machine"):
            self.read(monkeypatch, nvmlInit=refuse("Driver/library version mismatch"))


class TestNvidiaSmi:
    def test_it_is_asked_where_there_is_no_nvml(self, smi: Callable[..., None]) -> None:
        smi()
        assert read_gpus() == reading(gpu(0, 3), gpu(1, 600, (41, 590), (42, None)))

    def test_neither_is_no_reading(self, smi: Callable[..., None]) -> None:
        assert read_gpus() is None
        smi(gpus="echo 'NVIDIA-SMI has failed'; exit 9")
        assert read_gpus() is None
        smi(gpus="echo 'something, else'")
        assert read_gpus() is None

    def test_a_replaced_driver_needs_a_reboot_r26(self, smi: Callable[..., None]) -> None:
        smi(gpus="echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
        with pytest.raises(EngineError, match="reboot this machine"):
            read_gpus()
