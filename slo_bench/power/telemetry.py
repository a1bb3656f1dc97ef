"""Power, clocks and temperature of the GPUs that a server uses, read beside the load and never in its way.

    async with watching_power(uuids) as power:
        ...
        power.between(start_s, end_s)

A child process reads (`slo_bench.power.reader`) and writes a file; here that file is read, after a window. Whatever the
driver does, no request waits for it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from reports.power import PowerSample, SpanPower, span_power

READY_LIMIT_S = 10.0
STOP_LIMIT_S = 2.0
READER = (sys.executable, "-m", "slo_bench.power.reader")


class PowerWatch:
    """A reader at work. source: "NVML", "nvidia-smi", or None where neither answers: nothing is measured then."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        """command: what writes samples to its standard output until its standard input ends."""
        self._path = folder / "samples.jsonl"
        with self._path.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
            )
        self._samples: list[PowerSample] = []
        self._read_to = 0
        self.source: str | None = None

    def wait(self, limit_s: float) -> None:
        """Return when it has said what it reads by, or has ended, at the latest after limit_s."""
        deadline_s = time.monotonic() + limit_s
        while self.source is None and self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
            self._read()

    def stop(self) -> None:
        """End the reader; one that hangs in the driver is killed, and left to the system when even that hangs."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_LIMIT_S)
        self._read()

    @property
    def samples(self) -> Sequence[PowerSample]:
        """Everything read so far. Reads a file: call it between windows."""
        self._read()
        return self._samples

    def between(self, start_s: float, end_s: float) -> SpanPower | None:
        """What the GPUs drew between two moments of CLOCK_MONOTONIC; None where nothing is measured."""
        near = [each for each in self.samples if start_s - READY_LIMIT_S <= each.at_s <= end_s + READY_LIMIT_S]
        return span_power(near, start_s, end_s) if self.source is not None else None

    def _read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_to += len(whole) + len(end)
        for line in whole.splitlines():
            values = json.loads(line)
            if "source" in values:
                self.source = values["source"]
            else:
                self._samples.append(PowerSample(**values))


@asynccontextmanager
async def watching_power(uuids: Sequence[str], reader: Sequence[str] = READER) -> AsyncIterator[PowerWatch]:
    """A watch over these GPUs, all of this machine's for none named, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="slo-bench-power-") as folder:
        watch = await asyncio.to_thread(PowerWatch, [*reader, *uuids], Path(folder))
        try:
            await asyncio.to_thread(watch.wait, READY_LIMIT_S)
            yield watch
        finally:
            await asyncio.to_thread(watch.stop)
