"""When a running probe may end: the rest cannot change the answer. It counts; the probe sends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from scipy.special import stdtrit

from gates.early_proof import EarlyProof
from gates.margin import WindowSample
from gates.slo import Objective, drain_limit_s
from traffic.probe import Stop
from traffic.records import RequestRecord
from traffic.schedule import Schedule
from traffic.summary import allowed

BLOCK_S = 20.0
"""Growth is read from blocks of this length."""

BLOCKS = 3
CROWD_SIGMAS = 5.0
"""Rate x longest allowed time is the mean of what may be in flight (Little's law); Poisson arrivals bunch around it."""

GROWTH_SIGMAS = 2.58
"""99 % of a normal: how far arrivals must run ahead of completions, in standard deviations of the counts."""

ERROR_WINDOW_S = 5.0
ERROR_SHARE = 0.20
ERROR_MIN = 5
"""A probe ends at 20 % errors within 5 s, but not for a handful of requests."""


@dataclass(frozen=True, slots=True)
class RateSoFar:
    """Of a rate whose windows are judged together: those before this one, and how many may still come after it."""

    windows: Sequence[WindowSample]
    more_windows: int


@dataclass(slots=True)
class Block:
    """What came and went in a block, and what was in flight at its end."""

    arrivals: int
    completions: int
    in_flight: int


@dataclass(slots=True)
class SloReferee:
    """Ends a probe that is lost by arithmetic, grows without bound, or only produces errors.

    Lost: more requests that have ended are over a limit than the largest cohort may have. Those still under way are not
    counted, however late: the verdict is made from records alone, and both must agree. Growth: see `is_growing`; or
    in-flight exceeds what the limits themselves allow.

    so_far: where the rate's windows are judged together. Then it is lost when no further windows could save the rate,
    and ends as well when its pass or fail is proven.
    """

    slo: Sequence[Objective]
    schedule: Schedule
    so_far: RateSoFar | None = None
    over: list[int] = field(init=False)
    limit: list[int] = field(init=False)
    blocks: list[Block] = field(default_factory=list)
    recent: list[tuple[float, bool]] = field(default_factory=list)
    _seen_done: int = 0
    _seen_sent: int = 0
    _early_proof: EarlyProof | None = None

    def __post_init__(self) -> None:
        self.over = [0] * len(self.slo)
        most = largest_cohort(self.schedule)
        self.limit = [allowed(most, objective.percentile) for objective in self.slo]
        if self.so_far is not None:
            self.limit = [pooled_limit(self.so_far, index, each, most) for index, each in enumerate(self.slo)]
            if not any(request.after is not None for request in self.schedule.requests):  # its blocks are not known
                self._early_proof = EarlyProof(self.slo, self.schedule, self.so_far.windows)

    def resolved(self, record: RequestRecord) -> None:
        """Count a request of the cohort."""
        for index, objective in enumerate(self.slo):
            value = objective.metric.of(record)
            if record.has_failed or (value is not None and value > objective.limit_s):
                self.over[index] += 1
        if record.ended_s is not None:
            self.recent.append((record.ended_s, record.has_failed))
        if self._early_proof is not None:
            self._early_proof.resolved(record)

    def look(self, now_s: float, in_flight: int, sent: int) -> Stop | None:
        """A reason to end, or None."""
        if self._errors(now_s):
            return Stop.ERRORS
        if any(count > most for count, most in zip(self.over, self.limit, strict=True)):
            return Stop.LOST
        if self._grows(now_s, in_flight, sent):
            return Stop.GROWTH
        return Stop.PROVEN if self._early_proof is not None and self._early_proof.look(now_s) else None

    def _errors(self, now_s: float) -> bool:
        self.recent = [(ended_s, failed) for ended_s, failed in self.recent if ended_s >= now_s - ERROR_WINDOW_S]
        errors = sum(failed for _, failed in self.recent)
        return errors >= ERROR_MIN and errors >= ERROR_SHARE * len(self.recent)

    def _grows(self, now_s: float, in_flight: int, sent: int) -> bool:
        window = self.schedule.window
        ceiling = (window.rate_rps or 0.0) * drain_limit_s(self.slo, window.longest_output_tokens)
        if in_flight > ceiling + CROWD_SIGMAS * math.sqrt(ceiling):
            return True
        if now_s < (len(self.blocks) + 1) * BLOCK_S or now_s > window.window_end_s + 1:
            return False
        done = sent - in_flight
        self.blocks.append(Block(sent - self._seen_sent, done - self._seen_done, in_flight))
        self._seen_sent, self._seen_done = sent, done
        return is_growing(self.blocks[1:])  # the first block fills an empty server


def pooled_limit(so_far: RateSoFar, index: int, objective: Objective, most: int) -> int:
    """How many of this window may be over, if all windows to come were as large as this one and had none over."""
    results = [window.results[index] for window in so_far.windows]
    n = sum(each.n for each in results) + (1 + so_far.more_windows) * most
    return max(0, allowed(n, objective.percentile) - sum(each.over for each in results))


def largest_cohort(schedule: Schedule) -> int:
    """The most requests that the cohort can have.

    A later turn of a conversation may come whenever its server lets it, but not before its due_s: each that might come
    inside the window counts. More requests allow more misses, so what is lost with all of them is lost with fewer.
    """
    window = schedule.window
    return sum(
        request.in_cohort if request.after is None else request.due_s < window.window_end_s
        for request in schedule.requests
    )


def is_growing(blocks: Sequence[Block]) -> bool:
    """Whether the last three blocks show growth that will not end.

    In-flight rises throughout, and arrivals exceed completions by more than the interval of their difference: by t over
    the three blocks, and by the counts themselves. The t interval alone is not enough: three numbers agree by luck in
    one of a few hundred stable probes.
    """
    last = blocks[-BLOCKS:]
    if len(last) < BLOCKS or not all(a.in_flight < b.in_flight for a, b in pairwise(last)):
        return False
    short = [block.arrivals - block.completions for block in last]
    mean = sum(short) / BLOCKS
    events = sum(block.arrivals + block.completions for block in last)
    if sum(short) <= GROWTH_SIGMAS * math.sqrt(events):
        return False
    spread = math.sqrt(sum((value - mean) ** 2 for value in short) / (BLOCKS - 1))
    return mean > float(stdtrit(BLOCKS - 1, 0.975)) * spread / math.sqrt(BLOCKS)
