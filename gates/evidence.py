"""A probe and its server's own counts, brought together: client beside server, and what late requests met.

Records count from the probe's start and samples are stamped in UTC, so a run directory can be asked again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gates.slo import Metric, Objective, is_miss
from gates.validity import MEASURED
from gates.verdict import LimitedBy, ProbeVerdict
from traffic.probe import ProbeFacts
from traffic.records import End, RequestRecord
from traffic.sender import LEAD_S
from traffic.server_facts import Change, ServerSample, difference
from traffic.summary import cohort, mean

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

READS_LESS_SHARE = 0.05
"""Requests at the edges, and first tokens held up in the front-end, move the means of the same requests by a few per
cent; a client that reads 5 % less than the server does not see what the server counts."""

SAME_REQUESTS_SHARE = 0.1
"""Client and server count the same requests when they differ by less: the edges, and requests that were cancelled."""

MIN_SEEN = 20
"""Fewer requests have no mean to compare."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A mean latency in seconds as the client and as the server read it.

    Over the same requests: those whose first token (TTFT) or end (TPOT) fell between the first and the last look at the
    load, whether in the cohort or not. lag_mean_s: the client's own lateness inside its TTFT; 0 for TPOT.
    """

    metric: Metric
    client_mean_s: float | None
    client_n: int
    server_mean_s: float | None
    server_n: int
    lag_mean_s: float

    @property
    def gap_s(self) -> float | None:
        """Front-end and network: what the client reads beyond the server and its own lag."""
        if self.client_mean_s is None or self.server_mean_s is None:
            return None
        return self.client_mean_s - self.lag_mean_s - self.server_mean_s

    @property
    def is_same_load(self) -> bool:
        """Whether both counted the same requests, and enough of them. If not, somebody else may load the server."""
        near = abs(self.client_n - self.server_n) <= SAME_REQUESTS_SHARE * self.server_n
        return near and min(self.client_n, self.server_n) >= MIN_SEEN

    @property
    def reads_less(self) -> bool:
        """Whether the client reads less than the server, which it cannot."""
        if self.gap_s is None or self.server_mean_s is None:
            return False
        return self.is_same_load and self.gap_s < -READS_LESS_SHARE * self.server_mean_s

    @property
    def invalid_reason(self) -> str | None:
        """Why the difference spoils the measurement: the client reads less, or its own lag makes the difference."""
        if self.gap_s is None or not self.is_same_load:
            return None
        name = self.metric.value.upper()
        if self.reads_less:
            return (
                f"the client reads {ms(-self.gap_s)} less mean {name} than the server's {ms(self.server_mean_s)}: "
                "it does not see every token when it comes; look for a proxy that collects them"
            )
        if self.lag_mean_s > max(self.gap_s, MEASURED.send_lag_p99_s):
            return f"the client's own lag, {ms(self.lag_mean_s)} on average, explains its {name}: give it a free core"
        return None

    def __str__(self) -> str:
        text = f"mean {self.metric.value.upper()}: client {ms(self.client_mean_s)}, server {ms(self.server_mean_s)}"
        if self.gap_s is not None:
            text += f", front-end and network {ms(self.gap_s)}"
        if self.metric is Metric.TTFT:
            text += f", the client's own lag {ms(self.lag_mean_s)}"
        if self.is_same_load:
            return f"{text} (n {self.client_n})"
        return f"{text} (not the same requests: {self.client_n} at the client, {self.server_n} at the server)"


def ms(seconds: float | None) -> str:
    """Seconds as a sentence prints them."""
    if seconds is None or math.isnan(seconds):
        return "unknown"
    value = round(seconds * 1000, 1 if abs(seconds) < 1 else None)
    return f"{value + 0:.1f} ms" if abs(seconds) < 1 else f"{value} ms"


def number(value: float, form: str = ".0f") -> str:
    """A count or a share as a sentence prints it."""
    return "unknown" if math.isnan(value) else format(value, form)


def during(facts: ProbeFacts, samples: Sequence[ServerSample]) -> list[tuple[float, ServerSample]]:
    """The looks that fell into the probe's load, each with its time in seconds after the start.

    The ramp's are among them: it is the same load, and a probe that ends early has few others.
    """
    origin_utc_s = facts.started_utc.timestamp() + LEAD_S
    moments = [(each.utc_s - origin_utc_s, each) for each in samples]
    return [pair for pair in moments if 0.0 <= pair[0] < facts.load_s]


def whole_change(looks: Sequence[tuple[float, ServerSample]]) -> Change | None:
    """What the server did from the first look to the last; None without two looks, or when it began anew between."""
    if len(looks) < 2:  # noqa: PLR2004 - a difference needs two
        return None
    if any(difference(a, b).has_restarted for (_, a), (_, b) in pairwise(looks)):
        return None
    return difference(looks[0][1], looks[-1][1])


def counted(facts: ProbeFacts, metric: Metric, looks: Sequence[tuple[float, ServerSample]]) -> list[RequestRecord]:
    """The requests that a server counts between the looks, of the cohort or not: by first token (TTFT), end (TPOT)."""
    start_s, end_s = looks[0][0], looks[-1][0]
    found = []
    for each in facts.records:
        finished_s = each.last_token_s if each.end is End.FINISHED else None
        moment_s = each.first_token_s if metric is Metric.TTFT else finished_s
        if moment_s is not None and start_s < moment_s <= end_s:
            found.append(each)
    return found


def server_cached_share(facts: ProbeFacts, samples: Sequence[ServerSample]) -> float | None:
    """Prompt tokens that a prefix cache held, by the server's own counts over the window; None where it has none."""
    window = facts.window
    looks = [each for each in during(facts, samples) if window.window_start_s <= each[0] < window.window_end_s]
    change = whole_change(looks)
    return None if change is None else change.cached_share


def side_by_side(facts: ProbeFacts, samples: Sequence[ServerSample]) -> tuple[SideBySide, ...]:
    """Mean TTFT and TPOT of client and server; empty without two looks at one server process."""
    looks = during(facts, samples)
    change = whole_change(looks)
    if change is None:
        return ()
    views = []
    for metric, histogram in ((Metric.TTFT, change.ttft_s), (Metric.TPOT, change.tpot_s)):
        seen = counted(facts, metric, looks)
        lags = [each.send_lag_s or 0.0 for each in seen] if metric is Metric.TTFT else []
        server_mean_s, server_n = (None, 0) if histogram is None else (histogram.mean, histogram.count)
        client_mean_s = mean([metric.of(each) or 0.0 for each in seen])  # vLLM's TPOT of a single token is 0 as well
        views.append(SideBySide(metric, client_mean_s, len(seen), server_mean_s, server_n, mean(lags) or 0.0))
    return tuple(views)


@dataclass(frozen=True, slots=True)
class Series:
    """What a server did from look to look, one entry per pair of looks; NaN where it does not say.

    start_s and end_s: after the probe's start. waiting, running (of the busiest engine) and kv_use (share): at the end.
    preemptions: in between. step_tokens and prompt_tokens: per engine step. s_per_token: between two tokens of one
    request.
    """

    start_s: FloatArray
    end_s: FloatArray
    waiting: FloatArray
    running: FloatArray
    kv_use: FloatArray
    preemptions: FloatArray
    step_tokens: FloatArray
    prompt_tokens: FloatArray
    s_per_token: FloatArray


def series(looks: Sequence[tuple[float, ServerSample]]) -> Series:
    """The series of these looks, each with its time."""
    rows = []
    for (start_s, before), (end_s, after) in pairwise(looks):
        change = difference(before, after)
        gauges = (after.waiting, after.running_max, after.kv_use_share)
        per_step = (change.tokens_per_step, change.prompt_tokens_per_step, change.s_per_token)
        rows.append((start_s, end_s, *gauges, change.preemptions, *per_step))
    columns: list[FloatArray] = list(np.array(rows, dtype=np.float64).reshape(len(rows), 9).T)
    return Series(*columns)


class Case:
    """A failed probe, its late requests, and what the server did while they were under way.

    is_first: late first tokens are the question, else slow tokens. late: the requests that ask it; where none has ended
    yet, the whole cohort. weights: how many of them were under way between two looks, times the seconds.
    Raises ValueError for a probe that nothing limited.
    """

    def __init__(self, verdict: ProbeVerdict, samples: Sequence[ServerSample]) -> None:
        if verdict.limited_by is None:
            raise ValueError("nothing limited a probe that passed")
        self.facts = verdict.facts
        self.limited_by = verdict.limited_by
        self.slo = [result.objective for result in verdict.results]
        self.members = [each for each in cohort(verdict.facts.records) if each.is_resolved]
        self.misses = [each for each in self.members if is_miss(self.slo, each)]
        self.is_first = verdict.limited_by is LimitedBy.TTFT or self._most_wait_first()
        late = [each for each in self.misses if _waits(self.slo, each, is_first=self.is_first)]
        self.late = late or self.misses or cohort(verdict.facts.records)
        self.looks = during(verdict.facts, samples)
        self.server = series(self.looks)
        self.weights = self._under_way()

    def _most_wait_first(self) -> bool:
        """Whether most misses wait for their first token although another objective was broken most.

        Those that never got one are over every limit, TPOT's as well.
        """
        if self.limited_by in (LimitedBy.TPOT, LimitedBy.ITL):
            waiting = sum(each.first_token_s is None for each in self.misses)
        else:
            waiting = sum(_waits(self.slo, each, is_first=True) for each in self.misses)
        return 2 * waiting > len(self.misses)

    def _under_way(self) -> FloatArray:
        spans = []
        for each in self.late:
            begun_s = each.due_s if self.is_first else each.first_token_s
            over_s = each.first_token_s if self.is_first else each.ended_s
            if begun_s is not None:
                spans.append((begun_s, self.facts.load_s if over_s is None else over_s))
        begun, over = np.array(spans, dtype=np.float64).reshape(-1, 2).T[:, :, None]
        shared = np.minimum(over, self.server.end_s) - np.maximum(begun, self.server.start_s)
        met: FloatArray = np.clip(shared, 0.0, None).sum(axis=0)
        return met if met.sum() > 0 else self.server.end_s - self.server.start_s

    @property
    def while_late(self) -> str:
        """The beginning of a sentence about what they met."""
        who = "late requests" if self.misses else "requests"
        return f"while {who} " + ("waited for their first token" if self.is_first else "got their tokens")

    def limit_s(self, metric: Metric) -> float:
        """The limit of the objective on a metric; infinite without one."""
        return next((each.limit_s for each in self.slo if each.metric is metric), math.inf)

    def met(self, values: FloatArray) -> float:
        """What late requests met on average; NaN where the server does not say."""
        known = np.isfinite(values) & (self.weights > 0)
        weight = self.weights[known].sum()
        return float(values[known] @ self.weights[known] / weight) if weight > 0 else math.nan

    def share(self, condition: BoolArray, *known: FloatArray) -> float:
        """For which share of their time a condition held, where these values are known; 0 where they never are."""
        value = self.met(np.where(np.isfinite(sum(known)), condition, math.nan))
        return 0.0 if math.isnan(value) else value


def _waits(slo: Sequence[Objective], record: RequestRecord, *, is_first: bool) -> bool:
    """Whether a miss waited too long for its first token, or else for the others; one may do both."""
    if record.first_token_s is None or record.ttft_s is None:
        return is_first
    broken = {each.metric for each in slo if (value := each.metric.of(record)) is not None and value > each.limit_s}
    if not broken & {Metric.TTFT, Metric.TPOT, Metric.ITL}:  # end to end, or cut off: by where its time went
        return is_first == (record.ttft_s > (record.last_token_s or 0.0) - record.first_token_s)
    return Metric.TTFT in broken if is_first else bool(broken & {Metric.TPOT, Metric.ITL})


def context(case: Case) -> list[str]:
    """What else is worth a line, whatever the cause."""
    if len(case.looks) < 2:  # noqa: PLR2004 - a difference needs two
        return []
    change = whole_change(case.looks)
    if change is None:
        return ["the server began anew while the probe ran"]
    lines = []
    queue_s, prefill_s = (None if each is None else each.mean for each in (change.queue_s, change.prefill_s))
    if queue_s is not None and prefill_s is not None:
        lines.append(f"by the server's own record a request queued for {ms(queue_s)} and prefilled for {ms(prefill_s)}")
    if change.preemptions:
        lines.append(f"{change.preemptions} preemptions in {change.span_s:.0f} s")
    return lines


def missing(case: Case) -> tuple[str, ...]:
    """What the server did not say."""
    if len(case.looks) < 2:  # noqa: PLR2004 - a difference needs two
        return ("two looks at the server's metrics while the probe ran",)
    names = {
        "requests waiting": case.server.waiting,
        "requests running": case.server.running,
        "KV cache use": case.server.kv_use,
        "preemptions": case.server.preemptions,
        "tokens per step": case.server.step_tokens,
        "time between tokens": case.server.s_per_token,
    }
    return tuple(name for name, values in names.items() if not np.isfinite(values).any())
