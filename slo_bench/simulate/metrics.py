"""The simulated server's /metrics: vLLM's names and buckets over the step model's own counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from traffic.server_facts import Histogram, ServerSample
from traffic.step_model import StepModel, StepOutcome

# The edges are those of vLLM 0.24 to 0.32, so that a reader of histograms meets the same resolution.
_TTFT_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_TOKEN_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_E2E_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
_STEP_TOKENS: Final = (1.0, 8.0, *(float(1 << power) for power in range(4, 15)))
_REASONS: Final = ("stop", "length", "abort", "error")


class _Tally:
    """A histogram that takes a weight: one step gives many requests the same gap."""

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def add(self, value: float, weight: int = 1) -> None:
        """Count `weight` observations of one value."""
        self._counts[bisect_left(self._edges, value)] += weight
        self._sum += value * weight

    def family(self, name: str, text: str, labels: dict[str, str]) -> HistogramMetricFamily:
        """As Prometheus shows it."""
        family = HistogramMetricFamily(name, text, labels=list(labels))
        buckets: list[tuple[str, float]] = []
        total = 0
        for edge, count in zip((*self._edges, float("inf")), self._counts, strict=True):
            total += count
            buckets.append((floatToGoString(edge), total))  # type: ignore[no-untyped-call]
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family

    def histogram(self) -> Histogram:
        """As a sample holds it."""
        counts = tuple(accumulate(self._counts))
        return Histogram(tuple(self._edges), counts[:-1], self._sum, counts[-1])


class ServerMetrics(Collector):
    """Counts what the engine's steps tell, and answers a scrape. Latencies are the model's, in seconds."""

    def __init__(self, model: StepModel, model_id: str) -> None:
        self._model = model
        self._labels = {"model_name": model_id, "engine": "0"}
        self._finished = 0
        self._aborted = 0
        self._ttft = _Tally(_TTFT_S)
        self._tpot = _Tally(_TOKEN_S)
        self._itl = _Tally(_TOKEN_S)
        self._e2e = _Tally(_E2E_S)
        self._step_tokens = _Tally(_STEP_TOKENS)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def step(self, outcome: StepOutcome) -> None:
        """A step ended."""
        self._step_tokens.add(outcome.decoded + outcome.prefill_tokens + len(outcome.first))
        if outcome.decoded:
            self._itl.add(outcome.gap_s, outcome.decoded)
        for job in outcome.first:
            self._ttft.add(outcome.end_s - job.arrival_s)
        for job in outcome.finished:
            self._finished += 1
            self._e2e.add(outcome.end_s - job.arrival_s)
            decode_s = outcome.end_s - (job.first_token_s or outcome.end_s)
            self._tpot.add(decode_s / max(1, job.output_tokens - 1))  # 0 for a single token, as vLLM has it

    def abort(self) -> None:
        """A client left before its answer was complete."""
        self._aborted += 1

    def exposition(self) -> bytes:
        """The text of a scrape."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every family, at the model's state of now."""
        model, settings = self._model, self._model.settings
        yield self._gauge("num_requests_running", "Requests in the batch.", model.running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", model.waiting)
        yield self._gauge(
            "kv_cache_usage_perc", "Share of the KV cache, 0 to 1.", model.kv_tokens / settings.kv_cache_tokens
        )
        yield self._counter("num_preemptions", "Preemptions.", model.preemptions_total)
        yield self._counter("prompt_tokens", "Prompt tokens of requests that got a token.", model.prompt_tokens_total)
        yield self._counter("generation_tokens", "Tokens generated.", model.generation_tokens_total)
        yield self._counter("prefix_cache_queries", "Tokens looked up; there is no prefix cache.", 0)
        yield self._counter("prefix_cache_hits", "Tokens found; there is no prefix cache.", 0)
        success = CounterMetricFamily(
            "vllm:request_success", "Requests by end.", labels=[*self._labels, "finished_reason"]
        )
        ended = {"length": self._finished, "abort": self._aborted}
        for reason in _REASONS:
            success.add_metric([*self._labels.values(), reason], ended.get(reason, 0))
        yield success
        yield self._ttft.family("vllm:time_to_first_token_seconds", "Time to first token.", self._labels)
        yield self._itl.family("vllm:inter_token_latency_seconds", "Gaps between tokens.", self._labels)
        yield self._tpot.family("vllm:request_time_per_output_token_seconds", "Mean gap per request.", self._labels)
        yield self._e2e.family("vllm:e2e_request_latency_seconds", "Arrival to last token.", self._labels)
        yield self._step_tokens.family("vllm:iteration_tokens_total", "Tokens per step.", self._labels)
        cache = {"block_size": "1", "num_gpu_blocks": str(settings.kv_cache_tokens), "enable_prefix_caching": "False"}
        info = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=[*self._labels, *cache])
        info.add_metric([*self._labels.values(), *cache.values()], 1)
        yield info

    def sample(self, *, moment_s: float, utc_s: float) -> ServerSample:
        """The same state as `collect` shows, without text or families: thousands are taken under virtual time."""
        model = self._model
        return ServerSample(
            moment_s=moment_s,
            utc_s=utc_s,
            engines=1,
            running=model.running,
            running_max=model.running,
            waiting=model.waiting,
            waiting_max=model.waiting,
            kv_use_share=model.kv_tokens / model.settings.kv_cache_tokens,
            preemptions_total=model.preemptions_total,
            prompt_tokens_total=model.prompt_tokens_total,
            cached_tokens_total=0,
            looked_up_tokens_total=0,
            generation_tokens_total=model.generation_tokens_total,
            step_tokens=self._step_tokens.histogram(),
            ttft_s=self._ttft.histogram(),
            tpot_s=self._tpot.histogram(),
            token_gap_s=self._itl.histogram(),
        )

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
