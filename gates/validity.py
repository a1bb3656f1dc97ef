"""When a probe is no result: the client, the clock or the sample spoiled it. Each bound stands in docs/method.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gates.slo import Objective
from traffic.probe import ProbeFacts
from traffic.summary import Summary, cohort


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a measurement may be off by and still be one."""

    send_lag_p99_s: float = 0.010
    send_lag_max_s: float = 0.5
    achieved_share: float = 0.99
    cpu_share: float = 0.85
    stall_max_s: float = 0.5
    clock_step_s: float = 1.0
    worker_clock_s: float = 0.001
    short_answer_share: float = 0.01
    unstreamed_share: float = 0.01
    cached_share: float = 0.01
    min_n: int = 1


MIN_STREAM_TOKENS = 8
"""Shorter answers may come in one piece from a busy server that merges chunks."""

MEASURED = Bounds()
SMOKE = Bounds(
    send_lag_p99_s=0.100, send_lag_max_s=2.0, cpu_share=math.inf, stall_max_s=2.0, worker_clock_s=0.010, min_n=20
)
"""The smoke mode runs beside its server on small machines and calls itself no measurement."""


def invalid_reasons(
    facts: ProbeFacts, summary: Summary, slo: Sequence[Objective], bounds: Bounds = MEASURED
) -> tuple[str, ...]:
    """Why this probe is no result, each with what to do; empty for a valid one."""
    return tuple(
        reason
        for reason in (
            *_client(facts, summary, bounds),
            *_answers(facts, summary, bounds),
            *_sample(facts, summary, slo, bounds),
        )
        if reason
    )


def _client(facts: ProbeFacts, summary: Summary, bounds: Bounds) -> list[str]:
    relief = _relief(facts)
    reasons = []
    if facts.client_fault is not None:
        where = "its node" if facts.worker_clocks else "this machine"
        reasons.append(f"{facts.client_fault}: free memory and cores of {where}, then measure again")
    for name, lag_s, bound_s in (
        ("send lag p99", summary.send_lag_p99_s, bounds.send_lag_p99_s),
        ("the largest send lag", summary.send_lag_max_s, bounds.send_lag_max_s),
    ):
        if lag_s is not None and lag_s > bound_s:
            reasons.append(f"{name} {lag_s * 1000:.1f} ms is above {bound_s * 1000:.0f} ms: {relief}")
    share = summary.achieved_share
    if share is not None and share < bounds.achieved_share:
        reasons.append(
            f"only {share:.1%} of the requests due in the window were sent in it: the client cannot keep up, {relief}"
        )
    if facts.cpu_share is not None and facts.cpu_share > bounds.cpu_share:
        reasons.append(f"the client used {facts.cpu_share:.0%} of its core, so what it reads is late: {relief}")
    if summary.client_errors:
        error = next(each.error for each in cohort(facts.records) if each.error.startswith("client: "))
        reasons.append(f"{summary.client_errors} requests failed in the client ({error.removeprefix('client: ')})")
    if facts.stall_max_s > bounds.stall_max_s:
        reasons.append(f"the client's event loop stood still for {facts.stall_max_s:.2f} s: free the machine")
    if abs(facts.clock_step_s) > bounds.clock_step_s:
        reasons.append(f"UTC and the monotonic clock moved apart by {facts.clock_step_s:+.1f} s: check time keeping")
    return [*reasons, *_worker_clocks(facts, bounds)]


def _worker_clocks(facts: ProbeFacts, bounds: Bounds) -> list[str]:
    """Workers on other machines whose schedule may have been off by more than it may be; the worst one is named."""
    off = [(error_s, each) for each in facts.worker_clocks if (error_s := each.error_s) is not None]
    error_s, worst = max(off, key=lambda pair: pair[0], default=(0.0, None))
    if worst is None or error_s <= bounds.worker_clock_s:
        return []
    drift_s = worst.drift_s or 0.0
    remedy = "keep the nodes' clocks by one time server"
    if worst.before.bound_s > abs(drift_s):
        remedy = "take nodes nearer to this machine, or less busy ones"
    known = f"the clock of worker {worst.worker} is known to {error_s * 1000:.2f} ms"
    return [f"{known}, above {bounds.worker_clock_s * 1000:g} ms (drift {drift_s * 1000:+.2f} ms): {remedy}"]


def _relief(facts: ProbeFacts) -> str:
    """What a client that is too slow needs."""
    if facts.window.concurrency is not None:
        return "give the client a free core or lower --concurrency"
    return f"raise --load-workers (now {facts.workers}), with a free core for each, or lower the rate"


def _answers(facts: ProbeFacts, summary: Summary, bounds: Bounds) -> list[str]:
    reasons = []
    is_forced = any(record.force_length for record in facts.records)
    if is_forced and summary.n and summary.short_answers / summary.n > bounds.short_answer_share:
        reasons.append(
            f"{summary.short_answers} of {summary.n} answers are shorter than forced: "
            "the server does not honour min_tokens and ignore_eos"
        )
    reasons += _streams(facts, bounds)
    cache_reason = cache_flatters(facts, cached_share(facts), bounds)
    if cache_reason is not None:
        reasons.append(cache_reason)
    if facts.window.duplicate_prompts:
        reasons.append(f"{facts.window.duplicate_prompts} prompts were sent twice: raise --length-scale")
    return reasons


def cached_share(facts: ProbeFacts) -> float | None:
    """Prompt tokens of the cohort that a prefix cache held, by the usage of each answer; None where no usage tells.

    Some servers leave the count out of an answer for which it is 0.
    """
    members = [each for each in cohort(facts.records) if each.prompt_tokens]
    prompt_tokens = sum(each.prompt_tokens or 0 for each in members)
    told = [each.cached_tokens for each in members if each.cached_tokens is not None]
    return sum(told) / prompt_tokens if told else None


def cache_flatters(facts: ProbeFacts, share: float | None, bounds: Bounds = MEASURED) -> str | None:
    """Why that share of cached prompt tokens spoils the probe; None for what the workload itself repeats."""
    asked_for = facts.window.shared_share
    if share is None or share <= asked_for + bounds.cached_share:
        return None
    repeats = f", though the workload repeats only {asked_for:.1%}" if asked_for else ""
    return (
        f"{share:.1%} of the prompt tokens came from a prefix cache{repeats}: restart the server or use another --seed"
    )


def _streams(facts: ProbeFacts, bounds: Bounds) -> list[str]:
    """Answers that came in one piece have no time per token; a count above what was asked for is no count."""
    finished = [each for each in cohort(facts.records) if each.is_resolved and not each.has_failed]
    reasons = []
    whole = sum(each.output_tokens >= MIN_STREAM_TOKENS and each.tpot_s is None for each in finished)
    if finished and whole / len(finished) > bounds.unstreamed_share:
        reasons.append(f"{whole} of {len(finished)} answers came in one piece: make the server (or a proxy) stream")
    beyond = sum(each.output_tokens > each.requested_output_tokens for each in finished)
    if beyond:
        reasons.append(f"{beyond} answers count more tokens than were asked for: the server's usage cannot be used")
    return reasons


def _sample(facts: ProbeFacts, summary: Summary, slo: Sequence[Objective], bounds: Bounds) -> list[str]:
    """A percentile needs a sample; an early end needs none, since it decides by counts."""
    if facts.stop.is_early:
        return []
    need = max((objective.min_n for objective in slo), default=1)
    need = max(need, bounds.min_n)
    if summary.n >= need:
        return []
    percentile = max(objective.percentile for objective in slo)
    return [f"{summary.n} requests are too few for a p{percentile} (at least {need}): raise --duration or the rate"]
