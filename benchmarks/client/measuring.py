"""A process tree's CPU time and memory while it runs, what else its host did, and the law of a load's arrivals."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SAMPLE_S = 0.1
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
KS_CRITICAL_5_PERCENT = 1.358
"""Times 1/sqrt(n): the Kolmogorov-Smirnov distance that one of twenty true Poisson loads exceeds."""

BIN_S = 0.25
"""Of the counts whose dispersion is looked at."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sums so far: cpu_s of the tree, busy_s of its cores (whoever it was), steal_s of all cores; and memory now."""

    at_s: float
    cpu_s: float
    rss_bytes: int
    busy_s: float
    steal_s: float


@dataclass(frozen=True, slots=True)
class _Stat:
    """A process as it stands; born: clock ticks since boot, so that a number that is used again is another process."""

    parent: int
    session: int
    born: int
    cpu_s: float
    rss_bytes: int


@dataclass(slots=True)
class Tree:
    """The leader of a session and all that it ever started, also what has lost its parent or made a session of its own.

    cores: those it runs on.
    """

    root: int
    cores: Sequence[int]
    samples: list[Sample] = field(default_factory=list)
    _known: dict[tuple[int, int], float] = field(default_factory=dict)

    def look(self) -> None:
        """Take a sample."""
        rows = {pid: row for pid in _pids() if (row := _stat(pid)) is not None}
        inside = {pid for pid, row in rows.items() if row.session == self.root or (pid, row.born) in self._known}
        while more := {pid for pid, row in rows.items() if row.parent in inside} - inside:
            inside |= more
        self._known |= {(pid, rows[pid].born): rows[pid].cpu_s for pid in inside}
        busy_s, steal_s = host_s(self.cores)
        rss_bytes = sum(rows[pid].rss_bytes for pid in inside)
        self.samples.append(Sample(time.monotonic(), sum(self._known.values()), rss_bytes, busy_s, steal_s))

    def alive(self) -> list[int]:
        """Those that still run."""
        return [pid for pid, born in self._known if (row := _stat(pid)) is not None and row.born == born]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one load, between two moments. other_s: CPU time of the client's core that was not the client's."""

    seconds: float
    cpu_s: float
    peak_rss_bytes: int
    other_s: float
    steal_s: float


def cost(samples: Sequence[Sample], start_s: float, end_s: float) -> Cost:
    """What happened from start_s to end_s; sums are read between two samples on a straight line."""
    at = [each.at_s for each in samples]

    def passed(sums: Sequence[float]) -> float:
        low, high = np.interp([start_s, end_s], at, sums)
        return float(high - low)

    cpu_s = passed([each.cpu_s for each in samples])
    inside = [each.rss_bytes for each in samples if start_s <= each.at_s <= end_s + SAMPLE_S]
    return Cost(
        seconds=end_s - start_s,
        cpu_s=cpu_s,
        peak_rss_bytes=max(inside, default=0),
        other_s=max(0.0, passed([each.busy_s for each in samples]) - cpu_s),
        steal_s=passed([each.steal_s for each in samples]),
    )


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - a third of the time


def _stat(pid: int) -> _Stat | None:
    """None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = text[text.rindex(b")") + 2 :].split()
    cpu_s = (int(after_name[11]) + int(after_name[12])) * _TICK_S
    return _Stat(int(after_name[1]), int(after_name[3]), int(after_name[19]), cpu_s, int(after_name[21]) * _PAGE_BYTES)


def host_s(cores: Sequence[int]) -> tuple[float, float]:
    """(seconds that these cores computed, seconds that all cores were stolen) since the machine started."""
    busy_s = steal_s = 0.0
    names = {f"cpu{core}" for core in cores}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name == "cpu":
            steal_s = int(numbers[7]) * _TICK_S
        if name in names:
            user, nice, system, _, _, interrupt, soft_interrupt = (int(each) * _TICK_S for each in numbers[:7])
            busy_s += user + nice + system + interrupt + soft_interrupt
    return busy_s, steal_s


@dataclass(frozen=True, slots=True)
class Law:
    """How like a Poisson process arrivals are. cv: of the gaps, 1 for Poisson. ks: distance to the exponential law.

    dispersion: variance over mean of the counts in bins of BIN_S, 1 for Poisson. ks_critical: what chance alone allows
    at 5 %.
    """

    cv: float
    ks: float
    ks_critical: float
    dispersion: float


def law(arrived_s: Sequence[float]) -> Law | None:
    """None for too few."""
    times = np.sort(np.asarray(arrived_s, dtype=float))
    gaps = np.diff(times)
    counts = np.bincount(((times - times[:1]) / BIN_S).astype(int))[:-1]  # the last bin is not full
    if len(gaps) < 2 or len(counts) < 2 or gaps.mean() <= 0:  # noqa: PLR2004 - one has no spread
        return None
    n, ascending = len(gaps), np.sort(gaps)
    expected = -np.expm1(-ascending / gaps.mean())
    steps = np.arange(n + 1) / n
    ks = max(float(np.max(steps[1:] - expected)), float(np.max(expected - steps[:-1])))
    return Law(
        cv=float(gaps.std() / gaps.mean()),
        ks=ks,
        ks_critical=KS_CRITICAL_5_PERCENT / math.sqrt(n),
        dispersion=float(counts.var(ddof=1) / counts.mean()),
    )


def quantile_ms(values_s: Sequence[float], share: float) -> float | None:
    """By nearest rank; None of nothing."""
    return float(np.quantile(values_s, share, method="inverted_cdf")) * 1000 if len(values_s) else None
