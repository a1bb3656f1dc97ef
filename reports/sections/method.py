"""How it was measured, with the definitions that matter, and what the method cannot see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gates.capacity import Strategy
from gates.effect import CONFIDENCE, NOT_TOLD_APART, EffectMetric, smallest_visible_share
from reports import numbers
from reports.arms import Arm
from reports.findings import objective_text, warm_up_text
from reports.markdown import bullets, code, escape, heading
from reports.page import Page
from reports.starts import offset_line


def method(page: Page) -> Iterator[str]:
    """Definitions and limits, as far as a reader needs them to judge the numbers."""
    experiment = page.experiment
    base = experiment.baseline
    slo = " and ".join(objective_text(each) for each in base.objectives)
    lengths = sorted({row.window_s for arm in experiment.arms for row in arm.sweep.probes})
    windows = ", ".join(numbers.seconds(length) for length in lengths) or numbers.NOT_MEASURED
    rule = _RULES[base.sweep.strategy]
    warm = "; ".join(f"{code(arm.label)} {warm_up_text(arm.sweep)}" for arm in experiment.arms)
    yield heading("Method", 2)
    yield bullets(
        [
            f"SLO: {slo}. {_PASSES}",
            _DEFINITIONS,
            _LOAD,
            f"Windows of {windows}; seed {numbers.count(experiment.document.seed)}. {rule} {_CAPACITY}",
            *((_ESTIMATE,) if any(arm.sweep.capacity_estimate_rps is not None for arm in experiment.arms) else ()),
            f"{_PAIRS} Interval: {numbers.confidence(CONFIDENCE)} by t over the pairs. {_BEYOND}",
            *((_BLOCKS,) if experiment.comparisons else ()),
            _ARRIVALS,
            *((_POWER,) if any(arm.power is not None for arm in experiment.arms) else ()),
            *((_MONEY,) if any(arm.cost is not None for arm in experiment.arms) else ()),
            *_gate(experiment.arms),
            f"Warm-up: {warm}.",
        ]
    )


def _gate(arms: Sequence[Arm]) -> Iterator[str]:
    """What the accuracy gate asked; nothing where it did not run."""
    asked = dict.fromkeys(
        f"{numbers.plural(arm.gate.n, 'item')} of {escape(arm.gate.asked.items_source)}"
        for arm in arms
        if arm.gate is not None and arm.gate.asked is not None
    )
    if asked:
        yield f"Accuracy gate: {'; '.join(asked)}; {_GATE}"


_PASSES = (
    "A window passes when each objective is broken by no more requests than its percentile allows; a failed, cut or "
    "unfinished request breaks all of them."
)
_DEFINITIONS = (
    "TTFT: first token minus the time at which the request was due. TPOT: last minus first token, divided by output "
    "tokens less one, per request. Goodput: requests that broke no objective, per second of the window."
)
_LOAD = (
    "Open loop: requests go out when due, whatever the server does. Arms see the same due times and lengths; repeats "
    "see new ones; no prompt goes to one server twice. Percentiles are the nearest rank."
)
_RULES = {
    Strategy.PUBLISHED: "A rate passes when its first window and all its repeats pass.",
    Strategy.ECONOMICAL: "A rate passes when its objectives hold over all its windows together.",
}
_CAPACITY = (
    "Capacity: the highest rate that passed below every failed one; resolution: first failed rate over it, less one."
)
_ESTIMATE = (
    "The estimate of a capacity is fitted to the latencies of all windows, with a 90 % interval. It decides nothing."
)
_PAIRS = (
    "Pairs: whole windows with the same repeat, which share due times and lengths. Effect: mean log ratio over the "
    "pairs."
)
_BEYOND = (
    "An effect counts as beyond the drift only when its whole interval is larger in size than anything in the drift's "
    "interval, in either direction. Smallest visible: half the interval plus that reach of the drift."
)
_BLOCKS = (
    "Blocks in turn: both servers get the same short load, one after the other and in balanced order, so that drift in "
    "time cancels inside a pair."
)
_ARRIVALS = (
    "At one rate the tokens per second of arms that keep up cannot differ: they are what arrives, so they are marked "
    '"set by the arrival rate". What an arm can carry shows in its own capacity.'
)
_POWER = (
    "Power: mean over the measured window, all GPUs of the server together, idle power included; energy per output "
    "token is that power over the tokens per second of the same time."
)
_MONEY = (
    "Dollars per million output tokens: price per hour of the whole machine over the tokens of an hour at the arm's "
    "own capacity, as if that load never stopped."
)
_GATE = (
    "the same for all arms, at temperature zero and under load; right of asked, where no answer counts as wrong. An "
    "arm that does not pass claims no capacity. Effect and drift of accuracy are in points, item by item, with a "
    "paired interval."
)


def blind_spots(page: Page) -> Iterator[str]:
    """Resolution, the smallest visible effect, and what cannot be told apart at all."""
    experiment = page.experiment
    yield heading("What this cannot see or tell apart", 2)
    yield bullets(
        [
            *_resolution_lines(page),
            NOT_TOLD_APART,
            *(line for arm in experiment.arms if (line := offset_line(arm)) is not None),
            *(_ONE_DRIFT if experiment.drift_arm is not None else ()),
            *_BLIND_SPOTS,
            *(_OF_SIMULATION if any(arm.is_simulated for arm in experiment.arms) else ()),
            *(_OF_SMOKE if any(arm.is_smoke for arm in experiment.arms) else ()),
        ]
    )


def _resolution_lines(page: Page) -> Iterator[str]:
    experiment = page.experiment
    steps = [
        f"{code(arm.label)} {numbers.share(arm.sweep.resolution_share)}"
        for arm in experiment.arms
        if arm.sweep.resolution_share is not None
    ]
    if steps:
        yield f"Capacities that differ by less than their resolution: {', '.join(steps)}."
    if experiment.document.anchor_rps is None:
        return
    metric = EffectMetric.TPOT_MEAN
    drift = experiment.drift(metric)
    for arm in experiment.compared:
        visible = smallest_visible_share(experiment.effect(arm, metric), drift)
        if visible is not None:
            yield f"Effects of {code(arm.label)} on mean TPOT that are smaller than {numbers.share(visible)}."


_ONE_DRIFT = (
    "The drift comes from one pair of equal server starts. How far other pairs would lie apart is not known.",
)
_BLIND_SPOTS = (
    "Intervals hold the noise between windows of one server, not between starts. With few pairs they are wide.",
    "Repeats that agree prove no rate: requests over a limit come in episodes, so agreement can still be luck.",
    "Means are over finished requests. Percentiles of windows are averaged, not pooled over requests.",
)
_OF_SIMULATION = (
    "The engine is SIMULATED: arithmetic with seeded noise. Nothing here is a statement about a GPU or about vLLM.",
)
_OF_SMOKE = ("A smoke run checks that everything works; its windows are too short to measure anything.",)
