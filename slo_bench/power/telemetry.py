"""A reader of power at work, beside the load and never in its way.

A child process reads (`slo_bench.power.reader`) and writes a file; here that file is read, after a window. Whatever the
driver does, no request waits for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.power import PowerSample

READY_LIMIT_S = 20.0
STOP_LIMIT_S = 2.0
READER = (sys.executable, "-m", "slo_bench.power.reader")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader says of itself. source: "NVML", "nvidia-smi" or "DCGM". gpus: name by UUID."""

    source: str
    every_s: float
    gpus: Mapping[str, str]


class PowerWatch:
    """A reader at work. reading: None until it has answered; reason: why it reads nothing, "" before it has said."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        """command: what writes samples to its standard output until its standard input ends."""
        self._path = folder / "samples.jsonl"
        with self._path.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
            )
        self._samples: list[PowerSample] = []
        self._read_to = 0
        self.reading: Reading | None = None
        self.reason = ""

    def wait(self, limit_s: float) -> None:
        """Return when it has said what it reads, or has ended, at the latest after limit_s."""
        deadline_s = time.monotonic() + limit_s
        while self.reading is None and time.monotonic() < deadline_s:
            has_ended = self._process.poll() is not None
            self._read()
            if has_ended:
                break
            time.sleep(0.02)
        if self.reading is None and not self.reason:
            has_ended = self._process.poll() is not None
            self.reason = "its reader ended at once" if has_ended else f"no source answered within {limit_s:g} s"

    def stop(self) -> None:
        """End the reader; one that hangs in the driver is killed, and left to the system when even that hangs."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
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

    def _read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_to += len(whole) + len(end)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, values: dict[str, Any]) -> None:
        if "reason" in values:
            self.reason = values["reason"]
        elif "source" in values:
            self.reading = Reading(values["source"], values["every_s"], values["gpus"])
        else:
            self._samples.append(PowerSample(**values))
