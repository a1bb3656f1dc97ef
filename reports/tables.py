"""The tables of a lab note: rows and columns from documents; no sentence and no rounding of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain

from gates.effect import CONFIDENCE, EffectMetric, conclude, smallest_visible_share
from reports import numbers
from reports.arms import Arm, Experiment
from reports.changes import size
from reports.evidence import struck_because
from reports.findings import effect_text, truth_verdict
from reports.markdown import Align, code, escape, struck, table
from reports.run_directory import Json, ProbeRow

NO_VALUE = "-"


def _ms(value_s: float | None) -> str:
    return numbers.ms(value_s, unit=False)


def _right(columns: Sequence[object]) -> list[Align]:
    return ["right" for _ in columns]


def effects(experiment: Experiment) -> str:
    """Every effect against the baseline at the anchor rate, with the drift in the same measure beside it."""
    interval = f"{numbers.confidence(CONFIDENCE)} interval"
    header = ["arm", "measure", f"effect ({interval})", f"drift ({interval})", "smallest visible", "finding"]
    rows = []
    for arm in experiment.compared:
        why_not = struck_because(experiment, arm)
        for metric in (*EffectMetric, *experiment.other_metrics):
            effect, drift = experiment.effect(arm, metric), experiment.drift(metric)
            visible = size(metric, smallest_visible_share(effect, drift))
            finding = conclude(effect, drift).said
            told = [effect_text(effect), effect_text(drift), visible]
            if why_not is None:
                rows.append([code(arm.label), metric, *told, finding])
            else:
                rows.append([code(arm.label), metric, *map(struck, told), f"no result: {escape(why_not)}"])
    return table(header, rows, ["left", "left", "right", "right", "right", "left"])


def truth_beside_finding(experiment: Experiment) -> str:
    """What was hidden, what was found, and what two plain runs would have claimed."""
    header = [
        "arm",
        "hidden",
        "true capacity",
        "found: passed, first failed",
        "true effect on mean TPOT",
        "found, concluded",
        "a plain two-run comparison claims",
    ]
    rows = []
    for arm in experiment.arms:
        truth = experiment.truth_of(arm)
        if truth is None:
            rows.append([code(arm.label), "not stated", *[NO_VALUE] * 5])
            continue
        is_base = arm is experiment.baseline
        rows.append(
            [
                code(arm.label),
                escape(truth.hidden),
                numbers.rate(truth.true_capacity_rps),
                _bracket(arm, truth.true_capacity_rps),
                NO_VALUE if is_base else numbers.signed_share(truth.true_tpot_effect_share),
                truth_verdict(experiment, arm),
                NO_VALUE if is_base else numbers.signed_share(truth.plain_claim_share),
            ]
        )
    return table(header, rows, ["left", "left", "right", "right", "right", "left", "right"])


def _bracket(arm: Arm, truth_rps: float | None) -> str:
    """The two ends that a sweep found, and whether the truth lies between them."""
    low, high = arm.sweep.capacity_rps, arm.sweep.first_failed_rps
    ends = f"{numbers.rate(low, unit=False)}, {numbers.rate(high, unit=False)}"
    if truth_rps is None or low is None or high is None:
        return ends
    return f"{ends}: {'holds the truth' if low <= truth_rps < high else 'misses the truth'}"


def windows(arm: Arm) -> str:
    """Every window of an arm in the order in which it was measured; invalid ones struck out, with the reason."""
    header = [
        "rate (req/s)",
        "repeat",
        "purpose",
        "outcome",
        "n",
        "failed",
        *_objective_names(arm),
        "send lag p99 (ms)",
    ]
    rows = [_window(row, arm) for row in arm.sweep.probes]
    right = _right(header[4:])
    return table(header, rows, ["right", "right", "left", "left", *right])


def _objective_names(arm: Arm) -> list[str]:
    return [f"p{each.percentile} {each.metric.upper()} (ms), over" for each in arm.objectives]


def _window(row: ProbeRow, arm: Arm) -> list[str]:
    rate = (
        numbers.rate(row.rate_rps, unit=False)
        if row.rate_rps is not None
        else f"{numbers.count(row.concurrency)} in flight"
    )
    values = [f"{_ms(each.value_s)}, {numbers.of(each.over, each.n)}" for each in row.objectives]
    values += [NO_VALUE] * (len(arm.objectives) - len(values))
    facts = [numbers.count(row.n), numbers.count(row.failed), *values, _ms(row.send_lag_p99_s)]
    place = [rate, numbers.count(row.repeat), row.purpose]
    if row.is_valid:
        early = "" if row.is_whole else f"; ended early: {escape(row.stop)}"
        return [*place, f"{row.outcome or NO_VALUE}{early}", *facts]
    reasons = escape("; ".join(row.invalid_reasons)) or "no reason recorded"
    return [*(struck(cell) for cell in place), f"invalid: {reasons}", *(struck(cell) for cell in facts)]


def differences(arms: Sequence[Arm], part: Callable[[Arm], Json]) -> str | None:
    """The settings in which the arms differ, a row each; None where they do not. part: which document's settings."""
    flat = [_flat(part(arm)) for arm in arms]
    names = [name for name in dict.fromkeys(chain.from_iterable(flat)) if len({each.get(name) for each in flat}) > 1]
    if not names:
        return None
    rows = [[code(name), *(_setting(each.get(name)) for each in flat)] for name in names]
    return table(["setting", *(code(arm.label) for arm in arms)], rows, ["left"] * (1 + len(arms)))


def common(arms: Sequence[Arm], part: Callable[[Arm], Json]) -> str | None:
    """The settings that all arms share, a row each; null ones are left out."""
    flat = [_flat(part(arm)) for arm in arms]
    rows = [
        [code(name), _setting(value)]
        for name, value in flat[0].items()
        if value != "null" and all(each.get(name) == value for each in flat)
    ]
    return table(["setting", "value"], rows, ["left", "left"]) if rows else None


def _setting(value: str | None) -> str:
    return "not set" if value in (None, "null") else escape(str(value))


_OWN = frozenset({"config.command", "config.label"})
"""Settings that differ between arms by what they are."""


def _flat(settings: Json, prefix: str = "") -> dict[str, str]:
    """Nested settings under dotted names."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if f"{prefix}{name}" in _OWN:
            continue
        if isinstance(value, dict) and value:
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat
