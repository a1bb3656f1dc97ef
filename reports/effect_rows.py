"""From blocks and their statistics to the rows of effect.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

from gates.block import Trend, grows, is_trend
from gates.comparison import Comparison, MetricEffect
from gates.evidence import during, whole_change
from gates.log_ratio import Estimate, as_share
from gates.slo import Metric
from gates.verdict import ProbeVerdict
from reports.effect_document import ArmName, BlockRow, EffectRow, TrendRow
from reports.power import SpanPower
from reports.rows import MIN_N_FOR_P99, power_fields
from traffic.server_facts import ServerSample
from traffic.summary import cohort, nearest_rank, sample


def block_row(
    verdict: ProbeVerdict,
    samples: Sequence[ServerSample],
    *,
    ran: int,
    start: int,
    requests_file: str,
    power: SpanPower | None = None,
) -> BlockRow:
    """The row of one block; samples: what its server said of itself. power: None where it is not measured."""
    facts, summary = verdict.facts, verdict.summary
    members = [record for record in cohort(facts.records) if record.is_resolved]
    ttft, tpot = (sample(members, metric.of) for metric in (Metric.TTFT, Metric.TPOT))
    looks = during(facts, samples)
    change = whole_change(looks)
    use = [each.kv_use_share for _, each in looks if each.kv_use_share is not None]

    def p99(values: Sequence[float]) -> float | None:
        return nearest_rank(values, Decimal(99)) if len(values) >= MIN_N_FOR_P99 else None

    return BlockRow(
        ran=ran,
        start=start,
        n=summary.n,
        failed=summary.failed,
        unfinished=summary.unfinished,
        errors=dict(Counter(record.error or record.end.value for record in members if record.has_failed)),
        tpot_mean_s=summary.mean_tpot_s,
        tpot_p50_s=nearest_rank(tpot, Decimal(50)),
        tpot_p99_s=p99(tpot),
        ttft_mean_s=summary.mean_ttft_s,
        ttft_p50_s=nearest_rank(ttft, Decimal(50)),
        ttft_p99_s=p99(ttft),
        goodput_rps=verdict.goodput_rps,
        offered_rps=summary.offered_rps,
        send_lag_p99_s=summary.send_lag_p99_s,
        output_tokens_mean=summary.mean_output_tokens,
        kv_use_max_share=max(use, default=None),
        preemptions=None if change is None else change.preemptions,
        grows=grows(facts),
        invalid_reasons=list(verdict.invalid_reasons),
        flags=[*verdict.flags, *(() if power is None else power.flags)],
        started_utc=facts.started_utc.isoformat(),
        load_s=facts.load_s,
        requests_file=requests_file,
        **power_fields(power, summary.output_tokens_per_s),
    )


def effect_rows(compared: Comparison) -> list[EffectRow]:
    """The rows of all metrics, mean TPOT first."""
    return [_effect_row(each) for each in compared.effects]


def _effect_row(found: MetricEffect) -> EffectRow:
    shown = found.shown
    return EffectRow(
        metric=found.metric,
        a_value=found.a_value,
        b_value=found.b_value,
        share=None if shown is None else shown.share,
        interval=None if shown is None else shown.interval,
        instances_interval=None if found.instances is None else found.instances.interval,
        n_pairs=found.n_pairs,
        claim=found.claim,
        smallest_visible_share=None if shown is None else shown.smallest_visible_share,
        control_share=None if found.control is None else found.control.share,
        control_interval=None if found.control is None else found.control.interval,
    )


def trend_rows(arm: ArmName, found: Trend) -> list[TrendRow]:
    """Both trends of an arm."""
    return [
        _trend_row(arm, "TPOT beyond requests in flight", found.tpot),
        _trend_row(arm, "requests in flight", found.in_flight),
    ]


def _trend_row(arm: ArmName, what: str, found: Estimate | None) -> TrendRow:
    """Trends are plain shares, not logarithms, so their ends are too."""
    half = None if found is None else found.half_width
    return TrendRow.model_validate(
        {
            "arm": arm,
            "what": what,
            "share": None if found is None else found.log_ratio,
            "interval": None if found is None or half is None else (found.log_ratio - half, found.log_ratio + half),
            "is_told": is_trend(found),
        }
    )


def sd_share(log_sd: float | None) -> float | None:
    """A standard deviation of logarithms as a share."""
    return None if log_sd is None else as_share(log_sd)


def ends(found: Estimate | None) -> tuple[float | None, tuple[float, float] | None]:
    """An estimate as a share and its interval."""
    return (None, None) if found is None else (found.share, found.interval)
