"""From verdicts to the rows and documents that are written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

from gates.capacity import Capacity, Strategy
from gates.cause import Cause
from gates.estimate import Estimate
from gates.margin import Proof
from gates.prompt_lengths import prompt_lengths
from gates.slo import Metric, Objective, ObjectiveResult
from gates.verdict import LimitedBy, ProbeVerdict
from reports.power import SpanPower
from reports.run_directory import CauseRow, EngineKind, ObjectiveRow, ProbeRow, SweepDocument, WarmUp, WorkerClockRow
from traffic.clock_offset import WorkerClock
from traffic.schedule import Window
from traffic.summary import cohort, nearest_rank, sample

MIN_N_FOR_P99 = 100
"""Below this many requests the 99th percentile is only the largest value: it is null."""


def probe_row(
    verdict: ProbeVerdict,
    *,
    purpose: Literal["search", "anchor", "single"],
    requests_file: str | None,
    is_proven: bool | None = None,
    power: SpanPower | None = None,
    server_start: int = 0,
) -> ProbeRow:
    """The row of one window. is_proven, server_start: see `ProbeRow`.

    power: of the part that ran, None where it is not measured.
    """
    facts, summary = verdict.facts, verdict.summary
    members = [record for record in cohort(facts.records) if record.is_resolved]
    ttft, tpot = (sample(members, metric.of) for metric in (Metric.TTFT, Metric.TPOT))
    lengths = prompt_lengths(facts)
    over = {metric: verdict.result(metric) for metric in (Metric.TTFT, Metric.TPOT)}

    def p99(values: Sequence[float]) -> float | None:
        return nearest_rank(values, Decimal(99)) if len(values) >= MIN_N_FOR_P99 else None

    return ProbeRow(
        rate_rps=facts.window.rate_rps,
        concurrency=facts.window.concurrency,
        repeat=facts.window.repeat,
        purpose=purpose,
        outcome=verdict.outcome,
        is_proven=is_proven,
        is_valid=verdict.is_valid,
        invalid_reasons=list(verdict.invalid_reasons),
        flags=[*verdict.flags, *(() if power is None else power.flags)],
        limited_by=verdict.limited_by,
        stop=facts.stop,
        n=summary.n,
        n_tpot=len(tpot),
        over_ttft=_over(over[Metric.TTFT]),
        over_tpot=_over(over[Metric.TPOT]),
        misses=verdict.misses,
        failed=summary.failed,
        errors=dict(Counter(record.error or record.end.value for record in members if record.has_failed)),
        objectives=[_objective(result) for result in verdict.results],
        ttft_p50_s=nearest_rank(ttft, Decimal(50)),
        ttft_p99_s=p99(ttft),
        tpot_p50_s=nearest_rank(tpot, Decimal(50)),
        tpot_p99_s=p99(tpot),
        ttft_mean_s=summary.mean_ttft_s,
        tpot_mean_s=summary.mean_tpot_s,
        goodput_rps=verdict.goodput_rps,
        offered_rps=summary.offered_rps,
        achieved_share=summary.achieved_share,
        send_lag_p50_s=summary.send_lag_p50_s,
        send_lag_p99_s=summary.send_lag_p99_s,
        send_lag_max_s=summary.send_lag_max_s,
        load_workers=facts.workers,
        client_cpu_share=facts.cpu_share,
        stall_max_s=facts.stall_max_s,
        clock_step_s=facts.clock_step_s,
        worker_clocks=[_clock_row(each) for each in facts.worker_clocks] or None,
        abandoned_turns=facts.abandoned_turns,
        output_tokens_per_s=summary.output_tokens_per_s,
        output_tokens_mean=summary.mean_output_tokens,
        prompt_tokens_mean=summary.mean_prompt_tokens,
        prompt_tokens_min=None if lengths is None else lengths.least,
        prompt_tokens_max=None if lengths is None else lengths.most,
        prompt_tokens_target_mean=None if lengths is None else lengths.target_mean,
        cached_share=verdict.cached_share,
        shared_share=facts.window.shared_share,
        started_utc=facts.started_utc.isoformat(),
        window_s=facts.window.duration_s,
        load_s=facts.load_s,
        saved_s=facts.saved_s,
        requests_file=requests_file,
        server_start=server_start,
        **power_fields(power, summary.output_tokens_per_s),
    )


def power_fields(power: SpanPower | None, tokens_per_s: float | None) -> dict[str, Any]:
    """What a row says of power. tokens_per_s: output tokens of the same seconds."""
    if power is None:
        return {}
    return {
        "energy_j": power.energy_j,
        "power_mean_w": power.mean_w,
        "power_coverage_share": power.coverage_share,
        "joules_per_output_token": power.joules_per_token(tokens_per_s),
        "throttle_reasons": None if power.held_down is None else sorted(power.held_down),
    }


def _clock_row(clock: WorkerClock) -> WorkerClockRow:
    return WorkerClockRow(
        worker=clock.worker,
        offset_s=clock.before.offset_s,
        bound_s=clock.before.bound_s,
        drift_s=clock.drift_s,
        error_s=clock.error_s,
    )


def _over(result: ObjectiveResult | None) -> int | None:
    return None if result is None else result.over


def _objective(result: ObjectiveResult) -> ObjectiveRow:
    return ObjectiveRow(
        metric=result.objective.metric.value,
        percentile=float(result.objective.percentile),
        limit_s=result.objective.limit_s,
        n=result.n,
        over=result.over,
        allowed=result.allowed,
        value_s=result.value_s,
    )


def sweep_document(
    *,
    label: str,
    engine: EngineKind,
    seed: int,
    slo: Sequence[Objective],
    is_smoke: bool,
    capacity: Capacity,
    warm_up: WarmUp | None,
    probes: Sequence[ProbeRow],
    causes: Sequence[CauseRow] = (),
    client_limit_rps: float | None = None,
    estimate: Estimate | None = None,
    proofs: Mapping[float, Proof | None] | None = None,
    strategy: Strategy = Strategy.PUBLISHED,
    earlier_warm_ups: Sequence[WarmUp] = (),
) -> SweepDocument:
    """The sweep's answer with its windows; causes: of the failed ones. client_limit_rps: see `SweepDocument`.

    proofs: what is proven at each rate.
    """
    proven = (proofs or {}).items()
    return SweepDocument(
        schema_version=1,
        label=label,
        engine=engine,
        seed=seed,
        slo=[str(objective) for objective in slo],
        is_smoke=is_smoke,
        capacity_rps=capacity.capacity_rps,
        first_failed_rps=capacity.first_failed_rps,
        resolution_share=capacity.resolution_share,
        capacity_estimate_rps=None if estimate is None else estimate.rps,
        capacity_interval_rps=None if estimate is None else (estimate.low_rps, estimate.high_rps),
        proven_pass_rps=max((rate for rate, each in proven if each is Proof.PASS), default=None),
        proven_fail_rps=min((rate for rate, each in proven if each is Proof.FAIL), default=None),
        verdict=capacity.verdict,
        tallies=[str(each) for each in capacity.tallies],
        contradictions_rps=list(capacity.contradictions),
        strategy=strategy,
        unclear_rps=list(capacity.unclear),
        limited_by=_limit_at(capacity.first_failed_rps, probes),
        cause=_cause_at(capacity.first_failed_rps, causes),
        causes=list(causes),
        client_limit_rps=client_limit_rps,
        warm_up=warm_up,
        earlier_warm_ups=list(earlier_warm_ups),
        load_s=sum(row.load_s for row in probes),
        saved_s=sum(row.saved_s for row in probes),
        probes=list(probes),
    )


def cause_row(why: Cause, window: Window) -> CauseRow:
    """The row of one failed window's cause."""
    return CauseRow(
        rate_rps=window.rate_rps,
        repeat=window.repeat,
        kind=why.kind.value,
        evidence=list(why.evidence),
        classes=[str(each) for each in why.classes],
        views=[str(each) for each in why.views],
        missing=list(why.missing),
    )


def _cause_at(rate_rps: float | None, causes: Sequence[CauseRow]) -> str | None:
    """The kind at the first failed rate, by majority of its failed windows."""
    kinds = Counter(row.kind for row in causes if row.rate_rps == rate_rps)
    return kinds.most_common(1)[0][0] if kinds else None


def _limit_at(rate_rps: float | None, probes: Sequence[ProbeRow]) -> LimitedBy | None:
    """What limited the server at the first failed rate, by majority of its failed windows."""
    reasons = Counter(
        row.limited_by for row in probes if row.is_valid and row.rate_rps == rate_rps and row.limited_by is not None
    )
    return reasons.most_common(1)[0][0] if reasons else None
