"""The summary of a session: from an experiment or a comparison to summary.json."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from markdown_it import MarkdownIt

from gates.effect import EffectMetric, conclude, smallest_visible_share
from reports.arms import Arm, Experiment
from reports.compare_words import load_text, outlook_lines, sentence
from reports.effect_document import EffectDocument
from reports.findings import experiment_rows, mean_of
from reports.gates_document import GatesDocument
from reports.passport import machine_facts, server_facts
from reports.run_directory import SCHEMA_VERSION, ProbeRow
from reports.starts import server_starts
from reports.story import Decided
from reports.summary_document import (
    AccuracySummary,
    AnchorSummary,
    ArmSummary,
    ComparisonSummary,
    DecisionSummary,
    EffectSummary,
    Scalar,
    SummaryDocument,
    WindowSummary,
)
from reports.telling import tell

_LOAD = (
    *("mode", "workload", "length_scale", "arrivals", "burstiness", "input_tokens", "output_tokens"),
    *("shared_prefix_tokens", "turns_mean", "turns_max", "think_time", "trace", "max_input_tokens"),
    *("dataset", "dataset_split", "dataset_config", "tokenizer", "duration", "ramp", "objectives"),
)
"""Options that say what is sent and what it must achieve; recorded settings hold many more."""


def summary_of(experiment: Experiment) -> SummaryDocument:
    """The summary of an experiment, or of sweeps that were put together as one."""
    document, base = experiment.document, experiment.baseline
    environment, config = base.run.environment, base.run.config
    story = tell(experiment)
    return SummaryDocument(
        schema_version=SCHEMA_VERSION,
        kind="sweep" if len(experiment.arms) == 1 else "experiment",
        label=document.label,
        title=document.title,
        is_simulated=document.engine == "simulated" or any(arm.is_simulated for arm in experiment.arms),
        is_smoke=any(arm.is_smoke for arm in experiment.arms),
        answer=story.kind,
        headline=plain(story.headline),
        bullets=[plain(line) for line in story.bullets],
        cautions=[plain(line) for line in story.cautions],
        struck=story.struck,
        decision=None if story.decided is None else _decision(story.decided),
        engine=document.engine,
        seed=document.seed,
        load=load_of(config),
        gpus=_gpus(environment, "name"),
        gpu_uuids=_gpus(environment, "uuid") or [],
        baseline=document.baseline,
        drift_arm=document.drift_arm,
        anchor_rps=document.anchor_rps,
        arms=[_arm(experiment, arm) for arm in experiment.arms],
        failed=dict(document.failed),
        effects=list(_effects(experiment)),
        comparisons=[_comparison(each.document) for each in experiment.comparisons],
        started_utc=document.started_utc,
        ended_utc=document.ended_utc,
        slo_bench=_text(environment.get("slo_bench")),
        command=_words(config.get("command")),
    )


def summary_of_comparison(document: EffectDocument) -> SummaryDocument:
    """The summary of a run of `slo-bench compare`. It has no arms to hold a later session against."""
    a, b = document.a, document.b
    return SummaryDocument(
        schema_version=SCHEMA_VERSION,
        kind="compare",
        label=f"{a.label}--{b.label}",
        title=f"{b.label} against {a.label} at {load_text(document)}",
        is_simulated=document.is_simulated,
        is_smoke=False,
        answer=None,
        headline=sentence(document),
        bullets=outlook_lines(document),
        cautions=list(document.faults),
        struck={},
        decision=None,
        engine=a.engine,
        seed=document.seed,
        load={
            "workload": document.workload,
            "arrivals": document.arrivals,
            "length_scale": document.length_scale,
            "objectives": list(document.slo),
        },
        gpus=None,
        gpu_uuids=[],
        baseline=a.label,
        drift_arm=None,
        anchor_rps=document.rate_rps,
        arms=[],
        failed={},
        effects=[],
        comparisons=[_comparison(document)],
        started_utc=document.started_utc,
        ended_utc=document.ended_utc,
        slo_bench=None,
        command=list(document.command),
    )


def plain(markdown: str) -> str:
    """One line of Markdown as the text that its reader sees."""
    children = MarkdownIt("commonmark").parseInline(markdown)[0].children or []
    return "".join(child.content for child in children)


def _arm(experiment: Experiment, arm: Arm) -> ArmSummary:
    sweep, cost, rows = arm.sweep, arm.cost, experiment_rows(experiment, arm)
    return ArmSummary(
        label=arm.label,
        directory=Path(os.path.relpath(arm.directory.resolve(), experiment.directory.resolve())).as_posix(),
        status=arm.run.status,
        reason=arm.run.reason,
        is_warm=sweep.warm_up is not None and sweep.warm_up.is_warm,
        model=arm.engine.model,
        version=arm.engine.version,
        capacity_verdict=sweep.verdict,
        capacity_rps=sweep.capacity_rps,
        first_failed_rps=sweep.first_failed_rps,
        resolution_share=sweep.resolution_share,
        capacity_estimate_rps=sweep.capacity_estimate_rps,
        capacity_interval_rps=sweep.capacity_interval_rps,
        tallies=sweep.tallies,
        limited_by=sweep.limited_by,
        cause=sweep.cause,
        anchor=_anchor(experiment, arm),
        accuracy=None if arm.gate is None else _accuracy(arm.gate),
        power_mean_w=mean_of([row.power_mean_w for row in rows]),
        joules_per_output_token=mean_of([row.joules_per_output_token for row in rows]),
        usd_per_million_output_tokens=None if cost is None else cost.per_million_output_usd,
        windows=list(_windows(arm)),
        power_not_measured=None if arm.power is None else arm.power.not_measured,
        usd_per_hour=None if cost is None else cost.usd_per_hour,
        server_starts=server_starts(arm),
        facts={**dict(server_facts(arm.engine)), **dict(machine_facts(arm.run))},
    )


def _anchor(experiment: Experiment, arm: Arm) -> AnchorSummary | None:
    rate_rps = experiment.document.anchor_rps
    if rate_rps is None:
        return None
    windows, rows = arm.at(rate_rps), experiment_rows(experiment, arm)
    return AnchorSummary(
        passed=windows.passed,
        valid=windows.valid,
        n=sum(row.n for row in rows),
        ttft_p50_s=mean_of([row.ttft_p50_s for row in rows]),
        ttft_p99_s=mean_of([row.ttft_p99_s for row in rows]),
        ttft_mean_s=mean_of([row.ttft_mean_s for row in rows]),
        tpot_p50_s=mean_of([row.tpot_p50_s for row in rows]),
        tpot_p99_s=mean_of([row.tpot_p99_s for row in rows]),
        tpot_mean_s=mean_of([row.tpot_mean_s for row in rows]),
        goodput_rps=mean_of([row.goodput_rps for row in rows]),
        output_tokens_per_s=mean_of([row.output_tokens_per_s for row in rows]),
    )


def _accuracy(gate: GatesDocument) -> AccuracySummary:
    return AccuracySummary(
        outcome=gate.outcome,
        right=gate.right,
        n=gate.n,
        accuracy_share=gate.accuracy_share,
        accuracy_interval=gate.accuracy_interval,
    )


def _decision(decided: Decided) -> DecisionSummary:
    return DecisionSummary(
        decision=decided.decision,
        ground=decided.ground,
        arm=decided.arm,
        reason=plain(decided.reason),
        limits=plain(decided.limits),
    )


def _windows(arm: Arm) -> Iterator[WindowSummary]:
    """The whole valid windows of an open loop, the one that counts per rate and repeat, by rate."""
    for rate_rps in sorted({row.rate_rps for row in arm.sweep.probes if row.rate_rps is not None}):
        for row in arm.at(rate_rps).whole:
            yield _window(rate_rps, row)


def _window(rate_rps: float, row: ProbeRow) -> WindowSummary:
    return WindowSummary(
        rate_rps=rate_rps,
        repeat=row.repeat,
        window_s=row.window_s,
        n=row.n,
        passed=row.outcome is not None and row.outcome.passed,
        ttft_mean_s=row.ttft_mean_s,
        ttft_p99_s=row.ttft_p99_s,
        tpot_mean_s=row.tpot_mean_s,
        tpot_p99_s=row.tpot_p99_s,
    )


def _effects(experiment: Experiment) -> Iterator[EffectSummary]:
    """Every metric of every arm that is compared, mean TPOT first."""
    if experiment.document.anchor_rps is None:
        return
    for arm in experiment.compared:
        for metric in (*EffectMetric, *experiment.other_metrics):
            effect, drift = experiment.effect(arm, metric), experiment.drift(metric)
            yield EffectSummary(
                arm=arm.label,
                metric=metric,
                share=effect.share,
                interval=effect.interval,
                n_pairs=effect.n_pairs,
                drift_share=None if drift is None else drift.share,
                drift_interval=None if drift is None else drift.interval,
                smallest_visible_share=smallest_visible_share(effect, drift),
                finding=conclude(effect, drift),
            )


def _comparison(document: EffectDocument) -> ComparisonSummary:
    primary = document.primary
    return ComparisonSummary(
        a=document.a.label,
        b=document.b.label,
        outcome=document.outcome,
        sentence=sentence(document),
        metric=primary.metric,
        rate_rps=document.rate_rps,
        concurrency=document.concurrency,
        share=primary.share,
        interval=primary.interval,
        n_pairs=primary.n_pairs,
        starts_per_arm=document.starts_per_arm,
        claim=primary.claim,
        smallest_visible_share=primary.smallest_visible_share,
    )


def load_of(config: Mapping[str, object]) -> dict[str, Scalar | list[Scalar]]:
    """What is recorded of the load; what was left to its default in every way is not in it."""
    found: dict[str, Scalar | list[Scalar]] = {}
    for name in _LOAD:
        value = config.get(name)
        if isinstance(value, str | int | float):
            found[name] = value
        elif isinstance(value, list) and value:
            found[name] = [each if isinstance(each, str | int | float) else str(each) for each in value]
    return found


def _gpus(environment: Mapping[str, object], what: str) -> list[str] | None:
    """A fact of each GPU; None where none was seen."""
    gpus = environment.get("gpus")
    if not isinstance(gpus, list):
        return None
    return [str(gpu.get(what, "not known")) for gpu in gpus if isinstance(gpu, Mapping)]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _words(command: object) -> list[str]:
    """The command as it was recorded: its words, or one line."""
    if isinstance(command, list):
        return [str(word) for word in command]
    return [command] if isinstance(command, str) else []
