"""The accuracy gate of a sweep: on the same server start, beside as many requests as it carried at capacity."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from gates.accuracy import AccuracyRun
from gates.gsm8k import QUICK_ITEMS
from reports.gates_document import GATES_NAME, GatesDocument
from reports.gates_words import gate_lines
from reports.requests import read_requests
from reports.run_directory import ProbeRow, SweepDocument, read_document
from reports.withheld import withheld
from slo_bench.accuracy.holding import NO_ANSWERS, GatePlan, answers_nothing, budget, gate_plan, hold, telling
from slo_bench.accuracy.items import ItemSet
from slo_bench.accuracy.text import read_texts
from slo_bench.config import SweepOptions
from slo_bench.hosts import RunningHost
from slo_bench.sweep import Sweeper
from traffic.errors import UsageError
from traffic.probe import ProbeFacts

UNKNOWN_IN_FLIGHT = 16
"""Where no window tells how many there were."""

_ITEMS = {"quick": QUICK_ITEMS, "full": None}


def is_gated(options: SweepOptions) -> bool:
    """Whether the options ask for a gate. Raises UsageError for one that the simulated engine cannot be asked."""
    if options.gate == "gsm8k" and answers_nothing(options):
        raise UsageError(f"--gate gsm8k: {NO_ANSWERS}")
    if options.gate is not None:
        return options.gate == "gsm8k"
    return options.mode != "smoke" and not answers_nothing(options)


def gate_line(options: SweepOptions) -> str | None:
    """What is said of the gate before load starts; None for the simulated engine, which is not asked by default."""
    if is_gated(options):
        count = _count(options)
        items = "all items" if count is None else f"{count} items"
        return f"accuracy gate: GSM8K, {items}, after the sweep with as many requests in flight as at capacity"
    if answers_nothing(options):
        return None
    return "accuracy gate: none, since --gate none" if options.gate else "accuracy gate: none in mode smoke"


def sweep_gate(options: SweepOptions, item_set: ItemSet | None = None) -> GatePlan | None:
    """The gate that the options ask for, its items read; None for none. item_set: the items, where they are known.

    Raises UsageError, which says how to go on without, when the items cannot be had.
    """
    if not is_gated(options):
        return None
    try:
        return gate_plan(options, options, count=_count(options), item_set=item_set)
    except UsageError as error:
        raise UsageError(f"{error}, or leave the accuracy gate out with --gate none") from None


def _count(options: SweepOptions) -> int | None:
    return options.item_count(_ITEMS.get(options.mode, QUICK_ITEMS))


Then = Callable[[Sweeper, SweepDocument], Awaitable[SweepDocument]]
Check = Callable[[RunningHost], Awaitable[object]]


def after_sweep(plan: GatePlan, say: Callable[[str], None]) -> tuple[Check, Then]:
    """What `run_sweep` calls: whether the gate fits the engine's context, and holding it after the sweep."""

    async def then(sweeper: Sweeper, document: SweepDocument) -> SweepDocument:
        return await gated(plan, sweeper, document, say)

    return lambda running: budget(running, plan), then


def after_arm(
    plan: GatePlan, say: Callable[[str], None], *, anchor: Then, first: AccuracyRun | None
) -> tuple[Check, Then]:
    """The same for an arm of an experiment: first the anchor's windows, then the gate, at last the text gate.

    first: the arm that this one is held against.
    """

    async def then(sweeper: Sweeper, document: SweepDocument) -> SweepDocument:
        document = await gated(plan, sweeper, await anchor(sweeper, document), say, first=first)
        text = await read_texts(sweeper.bench.running, label=document.label, why_not=plan.why_no_text)
        sweeper.store.text(text)
        if text.not_measured is not None:
            say(f"text gate: not measured: {text.not_measured}")
        return document

    return lambda running: budget(running, plan), then


async def gated(
    plan: GatePlan,
    sweeper: Sweeper,
    document: SweepDocument,
    say: Callable[[str], None],
    *,
    first: AccuracyRun | None = None,
) -> SweepDocument:
    """Hold the gate, write gates.json, and give the sweep as it may be told from then on.

    first: the arm that this one is held against. Raises EngineError when the engine dies or does not come to rest.
    """
    in_flight = in_flight_at_capacity(document, sweeper.store.directory)
    if plan.item_set is not None:
        say(f"accuracy gate: {plan}, {in_flight} in flight")
    gates = await hold(
        sweeper.bench.running, plan, label=document.label, concurrency=in_flight, first=first, observe=telling(say)
    )
    sweeper.store.gates(gates)
    for line in gate_lines(gates):
        say(line)
    told = withheld(document, gates.outcome)
    sweeper.store.sweep(told)
    return told


def in_flight_at_capacity(document: SweepDocument, directory: Path) -> int:
    """The mean number of requests in flight in the windows at capacity, rounded up.

    Of a sweep without a capacity at the lowest rate that failed, which is what the engine could not carry.
    """
    rate_rps = document.first_failed_rps if document.capacity_rps is None else document.capacity_rps
    means = [mean_in_flight(read_requests(directory / name)) for name in _files(document.probes, rate_rps)]
    known = [mean for mean in means if mean is not None]
    return max(1, math.ceil(sum(known) / len(known))) if known else UNKNOWN_IN_FLIGHT


def _files(rows: Sequence[ProbeRow], rate_rps: float | None) -> list[str]:
    valid = [row for row in rows if row.rate_rps == rate_rps and row.is_valid]
    return [row.requests_file for row in valid if row.requests_file is not None]


def mean_in_flight(facts: ProbeFacts) -> float | None:
    """Requests that were sent and had not ended, on average over the window or the part of it that ran.

    All requests count, those of the ramp too. None for a window that ended before it began.
    """
    start_s, end_s = facts.window.window_start_s, min(facts.window.window_end_s, facts.load_s)
    if end_s <= start_s:
        return None
    sent = [each for each in facts.records if each.sent_s is not None]
    overlaps = (
        min(end_s, end_s if each.ended_s is None else each.ended_s) - max(start_s, each.sent_s or 0.0) for each in sent
    )
    return sum(max(0.0, overlap) for overlap in overlaps) / (end_s - start_s)


def first_answers(directory: Path) -> AccuracyRun | None:
    """What the first arm answered; None where its gate was not held. Raises UsageError for a file that is broken."""
    path = directory / GATES_NAME
    return read_document(path, GatesDocument).run() if path.exists() else None
