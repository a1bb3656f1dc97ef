"""Whether a running window, with those before it at its rate, already proves what that rate does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gates.margin import BLOCK_S, Proof, Values, WindowSample, block_of, proof, reading
from gates.slo import Objective
from gates.verdict import Outcome
from traffic.records import RequestRecord
from traffic.schedule import Schedule

LEAST_S = 60.0
"""A window is at least this long: what comes later in it may differ."""

GRACE_S = BLOCK_S
"""A block counts this long after its end, whether all of its requests have ended or not. Blocks that were taken when
they are complete would be those without slow requests."""


@dataclass(slots=True)
class EarlyProof:
    """Looks once a block, since each look computes for about a millisecond beside the load.

    The window's own margins are the plain ones: what its draw explains is too much to compute beside a load. A request
    that has not ended counts against whatever is claimed: there is no pass with one, and for a fail it was quick.
    earlier: the valid windows of the rate so far.
    """

    slo: Sequence[Objective]
    schedule: Schedule
    earlier: Sequence[WindowSample] = ()
    _values: list[list[tuple[int, float]]] = field(init=False)  # (block, log) per objective
    _failures: list[int] = field(default_factory=list)  # their blocks
    _due: list[int] = field(init=False)  # requests of the cohort per block
    _ended: list[int] = field(init=False)
    _blocks: int = 0

    def __post_init__(self) -> None:
        window = self.schedule.window
        self._values = [[] for _ in self.slo]
        count = block_of(window.window_end_s, window) + 1
        self._due, self._ended = [0] * count, [0] * count
        for request in self.schedule.requests:
            if request.in_cohort:
                self._due[block_of(request.due_s, window)] += 1

    def resolved(self, record: RequestRecord) -> None:
        """Keep what a request of the cohort says."""
        block = block_of(record.due_s, self.schedule.window)
        self._ended[block] += 1
        if record.has_failed:
            self._failures.append(block)
            return
        for values, objective in zip(self._values, self.slo, strict=True):
            if (value := objective.metric.of(record)) is not None and value > 0:
                values.append((block, math.log(value)))

    def look(self, now_s: float) -> bool:
        """Whether the rate's pass or fail is proven. now_s: after the probe's start."""
        elapsed_s = now_s - self.schedule.window.window_start_s
        blocks = min(int((elapsed_s - GRACE_S) / BLOCK_S), len(self._due))
        if elapsed_s < LEAST_S or blocks <= self._blocks:
            return False
        self._blocks = blocks
        return proof(self.slo, [*self.earlier, self._so_far(blocks)]) in (Proof.PASS, Proof.FAIL)

    def _so_far(self, blocks: int) -> WindowSample:
        window = self.schedule.window
        still_open = sum(self._due[:blocks]) - sum(self._ended[:blocks])
        failed = sum(block < blocks for block in self._failures)
        readings = []
        for objective, values in zip(self.slo, self._values, strict=True):
            kept = [each for each in values if each[0] < blocks]
            block, logs = (np.array([each[part] for each in kept]) for part in range(2))
            found = Values(np.arange(len(kept)), block, logs, failed, still_open)
            readings.append(reading(objective, found, None))
        return WindowSample(
            rate_rps=window.rate_rps or 0.0,
            repeat=window.repeat,
            duration_s=window.duration_s,
            outcome=Outcome.PASS,  # stands for "not unstable": growth is another's business
            is_whole=still_open == 0,
            results=(),
            readings=tuple(readings),
        )
