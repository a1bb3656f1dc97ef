"""What a server tells of itself: one look at its /metrics, and what happened between two looks.

The names are vLLM's, the same from 0.20 to 0.32. Whatever a server does not show is None, never 0. Several engines
behind one page, or several pages, are one server: counters and histograms are added up; a gauge is given as the sum
over the engines and, where a limit holds per engine, as the largest of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USE = "vllm:kv_cache_usage_perc"
_PREEMPTIONS = "vllm:num_preemptions_total"
_PROMPT = "vllm:prompt_tokens_total"
_CACHE = (
    ("vllm:prompt_tokens_cached_total", _PROMPT),
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
)
"""Tokens that a prefix cache held and the tokens that they are a part of, newest names first."""

_GENERATION = "vllm:generation_tokens_total"
_STEP_TOKENS = "vllm:iteration_tokens_total"
_TTFT = "vllm:time_to_first_token_seconds"
_TPOT = "vllm:request_time_per_output_token_seconds"
_TOKEN_GAP = "vllm:inter_token_latency_seconds"  # noqa: S105 - not a password
_QUEUE = "vllm:request_queue_time_seconds"
_PREFILL = "vllm:request_prefill_time_seconds"
_STARTED = "process_start_time_seconds"
_HISTOGRAMS = (_STEP_TOKENS, _TTFT, _TPOT, _TOKEN_GAP, _QUEUE, _PREFILL)
_PREFIXES = (
    *(_RUNNING, _WAITING, _KV_USE, _PREEMPTIONS, _PROMPT, _GENERATION, _STARTED),
    *(name for pair in _CACHE for name in pair),
    *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("bucket", "sum", "count")),
)
_MOST = 2.0**53
"""A larger count is no count: a float cannot step by one any more."""

_RESTART_S = 1.0
"""A process's start moves by less than this through rounding alone."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values by size, as Prometheus counts them.

    bounds: finite upper edges, ascending, in the unit of the values. counts: how many values are at most each edge.
    count and sum: of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    count: int

    @property
    def mean(self) -> float | None:
        """The mean value, exactly; None of nothing."""
        return self.sum / self.count if self.count else None

    def quantile_bounds(self, share: float) -> tuple[float, float] | None:
        """Between which edges the quantile lies (nearest rank; above the first, at most the second); None of nothing.

        A histogram knows no more than this, so nothing is interpolated. The last edge of all is infinity.
        """
        if not self.count:
            return None
        index = bisect_left(self.counts, max(1, math.ceil(share * self.count)))
        edges = (0.0, *self.bounds, math.inf)
        return edges[index], edges[index + 1]

    def over(self, limit: float) -> tuple[int, int]:
        """How many values are above a limit, at least and at most; equal where the limit is an edge."""
        below = (0, *self.counts, self.count)
        index = bisect_right(self.bounds, limit)
        is_edge = index > 0 and self.bounds[index - 1] == limit
        return self.count - below[index if is_edge else index + 1], self.count - below[index]

    def since(self, before: Histogram) -> Histogram | None:
        """The values that came after `before`; None when the edges differ or anything went back."""
        if self.bounds != before.bounds:
            return None
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        count, total = self.count - before.count, self.sum - before.sum
        # A scrape may fall between the updates of a bucket and of the count, hence more than the last comparison.
        is_sound = min(counts, default=0) >= 0 and count >= max(counts, default=0) and total >= 0
        if not is_sound or any(low > high for low, high in pairwise(counts)):
            return None
        return Histogram(self.bounds, counts, total, count)


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One look at a server; None where it shows no such metric.

    moment_s: loop time at which the answer came; a page is written just before it leaves. utc_s: POSIX seconds of the
    same moment. engines: how many were added up. running and waiting: requests in all engines; *_max: in the engine
    that has most. kv_use_share: 0 to 1, of the fullest engine. *_total: since the server's start. cached_tokens_total:
    of looked_up_tokens_total, the tokens that a prefix cache held (old servers count both in blocks). step_tokens:
    tokens per engine step. ttft_s, tpot_s, queue_s, prefill_s: per request, seconds, without network (vLLM's own
    meaning: TTFT from its reception, queue to the first scheduling, prefill from there to the first token).
    token_gap_s: per piece of output. started_utc_s: when the youngest process started.
    """

    moment_s: float
    utc_s: float
    engines: int = 0
    running: int | None = None
    running_max: int | None = None
    waiting: int | None = None
    waiting_max: int | None = None
    kv_use_share: float | None = None
    preemptions_total: int | None = None
    prompt_tokens_total: int | None = None
    cached_tokens_total: int | None = None
    looked_up_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    step_tokens: Histogram | None = None
    ttft_s: Histogram | None = None
    tpot_s: Histogram | None = None
    token_gap_s: Histogram | None = None
    queue_s: Histogram | None = None
    prefill_s: Histogram | None = None
    started_utc_s: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A look that gave nothing: when it was due (loop time and POSIX seconds), and why."""

    moment_s: float
    utc_s: float
    reason: str


def relevant(text: str) -> str:
    """The lines of a page that `sample` reads: a fifth of vLLM's, found in a fraction of the time of reading them."""
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_PREFIXES))


def sample(text: str, *, moment_s: float, utc_s: float) -> ServerSample:
    """Read Prometheus text; pages of several replicas may stand one after the other.

    Never raises: a page that cannot be parsed shows no metric at all, since half of a sum would look like a restart.
    """
    try:
        families = list(text_string_to_metric_families(relevant(text)))
    except Exception:  # noqa: BLE001 - the parser promises nothing about text that is not Prometheus's
        families = []
    return from_families(families, moment_s=moment_s, utc_s=utc_s)


def from_families(families: Iterable[Metric], *, moment_s: float, utc_s: float) -> ServerSample:
    """The sample that these metrics make, wherever they come from."""
    page = _Page(families)
    running, waiting = page.values[_RUNNING], page.values[_WAITING]
    kv_use = page.values[_KV_USE]
    is_share = bool(kv_use) and all(0 <= value <= 1 for value in kv_use)
    started = page.values[_STARTED]
    pairs = ((page.count(cached), page.count(looked_up)) for cached, looked_up in _CACHE)
    cached, looked_up = next((pair for pair in pairs if None not in pair), (None, None))
    return ServerSample(
        moment_s=moment_s,
        utc_s=utc_s,
        engines=len(running),
        running=_whole(running, sum(running)),
        running_max=_whole(running, max(running, default=0.0)),
        waiting=_whole(waiting, sum(waiting)),
        waiting_max=_whole(waiting, max(waiting, default=0.0)),
        kv_use_share=max(kv_use) if is_share else None,
        preemptions_total=page.count(_PREEMPTIONS),
        prompt_tokens_total=page.count(_PROMPT),
        cached_tokens_total=cached,
        looked_up_tokens_total=looked_up,
        generation_tokens_total=page.count(_GENERATION),
        step_tokens=page.histogram(_STEP_TOKENS),
        ttft_s=page.histogram(_TTFT),
        tpot_s=page.histogram(_TPOT),
        token_gap_s=page.histogram(_TOKEN_GAP),
        queue_s=page.histogram(_QUEUE),
        prefill_s=page.histogram(_PREFILL),
        started_utc_s=max(started) if started and all(map(math.isfinite, started)) else None,
    )


class _Page:
    """Values by name, over all engines; buckets by name and edge."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)
        self._buckets: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for each in (each for family in families for each in family.samples):
            value = float(each.value) if abs(each.value) < _MOST else math.nan
            if each.name.endswith("_bucket"):
                self._buckets[each.name][_edge(each.labels.get("le", ""))].append(value)
            else:
                self.values[each.name].append(value)

    def count(self, name: str) -> int | None:
        """A counter's sum."""
        return _whole(self.values[name], sum(self.values[name]))

    def histogram(self, name: str) -> Histogram | None:
        """A histogram's sum; None where an engine lacks an edge of another, or the counts make no sense."""
        buckets, sums = self._buckets[f"{name}_bucket"], self.values[f"{name}_sum"]
        edges = sorted(edge for edge in buckets if math.isfinite(edge))
        counts = [_whole(buckets[edge], sum(buckets[edge])) for edge in edges]
        count, total = self.count(f"{name}_count"), sum(sums)
        if count is None or len({*map(len, buckets.values()), len(sums)}) > 1 or not 0 <= total < _MOST:
            return None
        known = [each for each in counts if each is not None]
        if len(known) < len(counts) or not sums or any(low > high for low, high in pairwise((*known, count))):
            return None
        return Histogram(tuple(edges), tuple(known), total, count)


def _whole(values: Sequence[float], total: float) -> int | None:
    """A count made of these values; None of nothing, or where one of them is no count."""
    return round(total) if values and total < _MOST and all(value >= 0 for value in values) else None


def _edge(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True, slots=True)
class Change:
    """What a server did between two looks; None where one of them lacks the metric.

    span_s: the time between. has_restarted: a count went back or the process is another one; then all else is None,
    since what was lost cannot be known. Histograms hold what was counted in between.
    """

    span_s: float
    has_restarted: bool
    preemptions: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    looked_up_tokens: int | None = None
    generation_tokens: int | None = None
    step_tokens: Histogram | None = None
    ttft_s: Histogram | None = None
    tpot_s: Histogram | None = None
    token_gap_s: Histogram | None = None
    queue_s: Histogram | None = None
    prefill_s: Histogram | None = None

    @property
    def tokens_per_step(self) -> float | None:
        """Prompt and output tokens of a mean engine step."""
        return None if self.step_tokens is None else self.step_tokens.mean

    @property
    def prompt_tokens_per_step(self) -> float | None:
        """Of them the prompt's: what is left beside the tokens that were generated."""
        steps = self.step_tokens
        if steps is None or not steps.count or self.generation_tokens is None:
            return None
        return max(0.0, (steps.sum - self.generation_tokens) / steps.count)

    @property
    def s_per_token(self) -> float | None:
        """Seconds between two tokens of one request: the mean over all that were generated, first ones apart.

        Without the histogram of gaps: the time of a step, which is too long where the server had idle moments.
        """
        gaps, tokens = self.token_gap_s, self.generation_tokens
        if gaps is not None and tokens is not None:
            later = tokens - (0 if self.ttft_s is None else self.ttft_s.count)
            return gaps.sum / later if later > 0 and gaps.sum > 0 else None
        steps = self.step_tokens
        return self.span_s / steps.count if steps is not None and steps.count else None

    @property
    def cached_share(self) -> float | None:
        """Prompt tokens that a prefix cache held / those that were looked up in it; None without prompts."""
        if self.cached_tokens is None or not self.looked_up_tokens:
            return None
        return min(1.0, self.cached_tokens / self.looked_up_tokens)


def difference(before: ServerSample, after: ServerSample) -> Change:
    """What happened between two looks at one server, the earlier one first. Nothing in it is ever negative."""
    span_s = max(0.0, after.moment_s - before.moment_s)
    if _has_restarted(before, after):
        return Change(span_s, has_restarted=True)
    return Change(
        span_s,
        has_restarted=False,
        preemptions=_more(before.preemptions_total, after.preemptions_total),
        prompt_tokens=_more(before.prompt_tokens_total, after.prompt_tokens_total),
        cached_tokens=_more(before.cached_tokens_total, after.cached_tokens_total),
        looked_up_tokens=_more(before.looked_up_tokens_total, after.looked_up_tokens_total),
        generation_tokens=_more(before.generation_tokens_total, after.generation_tokens_total),
        step_tokens=_since(before.step_tokens, after.step_tokens),
        ttft_s=_since(before.ttft_s, after.ttft_s),
        tpot_s=_since(before.tpot_s, after.tpot_s),
        token_gap_s=_since(before.token_gap_s, after.token_gap_s),
        queue_s=_since(before.queue_s, after.queue_s),
        prefill_s=_since(before.prefill_s, after.prefill_s),
    )


def _more(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _since(before: Histogram | None, after: Histogram | None) -> Histogram | None:
    return None if before is None or after is None else after.since(before)


def _has_restarted(before: ServerSample, after: ServerSample) -> bool:
    """Whether a count went back, or a process is younger than it was."""
    starts = (before.started_utc_s, after.started_utc_s)
    if starts[0] is not None and starts[1] is not None and starts[1] > starts[0] + _RESTART_S:
        return True
    pairs = zip(_counts(before), _counts(after), strict=True)
    return any(then is not None and now is not None and now < then for then, now in pairs)


def _counts(one: ServerSample) -> list[int | None]:
    histograms = (one.step_tokens, one.ttft_s, one.tpot_s, one.token_gap_s, one.queue_s, one.prefill_s)
    return [
        *(one.preemptions_total, one.prompt_tokens_total, one.generation_tokens_total),
        *(one.cached_tokens_total, one.looked_up_tokens_total),
        *(None if each is None else each.count for each in histograms),
    ]


Look = Callable[[], Awaitable[str | ServerSample | None]]
"""One look: Prometheus text, a sample ready made, or None where there is no such page. May raise."""
