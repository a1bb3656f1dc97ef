"""The power of one server, from before its start to after its stop.

    async with measuring(source) as power:
        async with host as running:
            power.server_is_up()
            ...
            power.window(verdict)

A window is asked for after it has ended; nothing in here is awaited while load is on.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gates.verdict import ProbeVerdict
from reports.power import PowerSample, SpanPower, span_power
from reports.power_document import GpuRow, IdleRow, PowerDocument, WindowPowerRow
from reports.run_directory import SCHEMA_VERSION
from slo_bench.power.telemetry import READY_LIMIT_S, PowerWatch
from traffic.probe import ProbeFacts
from traffic.sender import LEAD_S

IDLE_S = 5.0
"""Idle power is read for so long before a server starts."""

LEAST_GROWTH_MIB = 128
"""A CUDA context alone takes more; the same GPU without one changes by less."""

STALE_S = 5.0
"""A last reading older than this was made by a reader that hangs."""

NEAR_S = 60.0
"""Readings so far from a window cannot touch it: an exporter may be asked every half minute."""

SIMULATED = "the engine is simulated"
ALL_COUNTED = "which of the GPUs the server uses could not be seen: all of them are counted"

_SLOW_EXPORTER = "; a dcgm-exporter asks every 30 s unless it is started with -c 1000"


@dataclass(frozen=True, slots=True)
class PowerSource:
    """Where a server's power is read. command: of the reader, None where there is nothing to read, and reason says why.

    by_memory: the server starts under the watch, and the GPUs whose memory grows are its own. counts_all: it does not,
    and nobody has named its GPUs one by one. is_running: the server is up before anything is read. idle_s: length of
    the reading without load.
    """

    command: tuple[str, ...] | None = None
    reason: str = "it was not asked for"
    by_memory: bool = False
    counts_all: bool = False
    is_running: bool = False
    idle_s: float = IDLE_S


UNREAD = PowerSource()


class Power:
    """What is read, or why nothing is."""

    def __init__(self, source: PowerSource, watch: PowerWatch | None) -> None:
        self._source = source
        self._watch = watch
        self._idle: SpanPower | None = None
        self._windows: list[WindowPowerRow] = []
        self._notes: list[str] = []
        self._reason = source.reason if watch is None else watch.reason
        reading = None if watch is None else watch.reading
        self.gpus: dict[str, str] = {} if reading is None else dict(reading.gpus)

    @property
    def not_measured(self) -> str | None:
        """Why there is no power; None where there is."""
        return None if self._source_name is not None and not self._reason else self._reason

    @property
    def _source_name(self) -> str | None:
        return None if self._watch is None or self._watch.reading is None else self._watch.reading.source

    @property
    def samples(self) -> Sequence[PowerSample]:
        """Everything read so far, of all GPUs that were watched."""
        return () if self._watch is None else self._watch.samples

    async def read_idle(self) -> None:
        """Read the GPUs without load."""
        if self.not_measured is None and self._source.idle_s > 0:
            start_s = time.monotonic()
            await asyncio.sleep(self._source.idle_s)
            self._idle = self.between(start_s, time.monotonic())

    def server_is_up(self) -> None:
        """Keep the GPUs whose memory grew while the server started: more are visible than it may use."""
        if self.not_measured is not None:
            return
        if not self._source.by_memory:
            if self._source.counts_all:
                self._notes.append(ALL_COUNTED)
            return
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for each in self.samples:
            if each.memory_used_mib is not None:
                first.setdefault(each.uuid, each.memory_used_mib)
                last[each.uuid] = each.memory_used_mib
        if not first or time.monotonic() - self.samples[-1].at_s > STALE_S:
            self._notes.append(ALL_COUNTED)
            return
        grown = {uuid for uuid in first if last[uuid] - first[uuid] >= LEAST_GROWTH_MIB}
        if not grown and self._source_name == "DCGM":
            self._notes.append(ALL_COUNTED)
            return
        self.gpus = {uuid: name for uuid, name in self.gpus.items() if uuid in grown}
        if not grown:
            self._reason = "the server uses no GPU: the memory of none grew when it started"
        elif self._idle is not None:
            start_s = self.samples[0].at_s
            self._idle = self.between(start_s, start_s + self._source.idle_s)

    def window(self, verdict: ProbeVerdict) -> SpanPower | None:
        """What the GPUs drew in the part of a window that ran, and a row of it; None where nothing is measured."""
        facts = verdict.facts
        start_s, end_s = moments(facts, utc_ahead_s=time.time() - time.monotonic())
        if self.not_measured is not None or end_s <= start_s:
            return None
        found = self.between(start_s, end_s)
        self._windows.append(_row(facts, found, end_s - start_s, verdict.summary.output_tokens_per_s))
        return found

    def document(self) -> PowerDocument:
        """power.json as it stands."""
        reading = None if self._watch is None else self._watch.reading
        is_measured = self.not_measured is None
        idle = None
        if self._idle is not None and is_measured:
            is_up = self._source.is_running
            idle = IdleRow(mean_w=self._idle.mean_w, seconds_s=self._source.idle_s, server_is_up=is_up)
        return PowerDocument(
            schema_version=SCHEMA_VERSION,
            source=None if reading is None else reading.source,
            not_measured=self.not_measured,
            every_s=None if reading is None else reading.every_s,
            gpus=[GpuRow(uuid=uuid, name=name) for uuid, name in self.gpus.items()],
            idle=idle,
            windows=list(self._windows),
            notes=list(self._notes),
        )

    def between(self, start_s: float, end_s: float) -> SpanPower:
        """What the GPUs drew between two moments of CLOCK_MONOTONIC that have passed, where power is measured."""
        assert self._watch is not None  # noqa: S101 - callers asked whether anything is read
        assert self._watch.reading is not None  # noqa: S101 - as above
        near = [each for each in self.samples if start_s - NEAR_S <= each.at_s <= end_s + NEAR_S]
        reading = self._watch.reading
        found = span_power(near, start_s, end_s, gpus=tuple(self.gpus), every_s=reading.every_s)
        if reading.source != "DCGM" or found.energy_j is not None:
            return found
        return replace(found, flags=tuple(f"{flag}{_SLOW_EXPORTER}" for flag in found.flags))


def moments(facts: ProbeFacts, *, utc_ahead_s: float) -> tuple[float, float]:
    """Start and end, on CLOCK_MONOTONIC, of the part of a window that ran. utc_ahead_s: UTC less CLOCK_MONOTONIC.

    A step of UTC during the window moves both; such a window is invalid.
    """
    window = facts.window
    origin_s = facts.started_utc.timestamp() + LEAD_S - utc_ahead_s
    end_s = min(window.window_end_s, max(facts.load_s, window.window_start_s))
    return origin_s + window.window_start_s, origin_s + end_s


def _row(facts: ProbeFacts, found: SpanPower, seconds_s: float, tokens_per_s: float | None) -> WindowPowerRow:
    return WindowPowerRow(
        rate_rps=facts.window.rate_rps,
        concurrency=facts.window.concurrency,
        repeat=facts.window.repeat,
        started_utc=facts.started_utc.isoformat(),
        seconds_s=seconds_s,
        source=found.source,
        energy_j=found.energy_j,
        mean_w=found.mean_w,
        coverage_share=found.coverage_share,
        counter_gap_share=found.counter_gap_share,
        output_tokens_per_s=tokens_per_s,
        joules_per_output_token=found.joules_per_token(tokens_per_s),
        sm_clock_median_mhz=found.sm_clock_median_mhz,
        temperature_max_c=found.temperature_max_c,
        utilization_mean_share=found.utilization_mean_share,
        held_down=None if found.held_down is None else dict(found.held_down),
        flags=list(found.flags),
    )


@asynccontextmanager
async def measuring(source: PowerSource) -> AsyncIterator[Power]:
    """Power for as long as the block lasts, the idle baseline read. Where nothing can be read it costs nothing."""
    if source.command is None:
        yield Power(source, None)
        return
    with tempfile.TemporaryDirectory(prefix="slo-bench-power-") as folder:
        try:
            watch = await asyncio.to_thread(PowerWatch, source.command, Path(folder))
        except OSError as error:
            yield Power(replace(source, reason=f"its reader cannot be started: {error.strerror}"), None)
            return
        try:
            await asyncio.to_thread(watch.wait, READY_LIMIT_S)
            power = Power(source, watch)
            await power.read_idle()
            yield power
        finally:
            await asyncio.to_thread(watch.stop)
