"""`slo-bench gate`: the accuracy gate alone, on any engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pydantic import field_validator

from gates.accuracy import AccuracyOutcome, AccuracyRun
from reports.gates_document import GatesDocument
from reports.gates_words import gate_lines
from slo_bench.accuracy.holding import GatePlan, first_arm, gate_plan, hold, not_held, telling
from slo_bench.accuracy.options import GATE, AccuracyOptions
from slo_bench.commands import marks, run_record
from slo_bench.config import LABEL
from slo_bench.engine_options import EngineOptions, option
from slo_bench.engines import confirm, host_for
from slo_bench.hosts import Host
from slo_bench.run import RunRecord, told
from slo_bench.store import RunStore, free_name
from slo_bench.view import SweepView
from traffic.clock import running_clock

_RUN = "run"

EXIT_CODES = {AccuracyOutcome.FAIL: 1, AccuracyOutcome.INCONCLUSIVE: 3}
"""0 for the rest: passed, or nothing to hold it against."""


class GateOptions(EngineOptions, AccuracyOptions):
    """Options of `slo-bench gate`."""

    concurrency: int = option(16, "items in flight at a time", group=GATE, metavar="N", ge=1)
    against: Path | None = option(
        None, "compare item by item with this run directory's gates.json", group=GATE, metavar="RUN_DIR"
    )
    label: str | None = option(None, "name of the run (default: gate-N)", group=_RUN)
    runs_dir: Path = option(Path("runs"), "where run directories are made", group=_RUN, metavar="DIR")
    seed: int = option(0, "of the simulated engine's noise; answers are greedy", group=_RUN, metavar="N", ge=0)
    yes: bool = option(default=False, description="do not ask before loading a host that is not this one", group=_RUN)

    @field_validator("label")
    @classmethod
    def _one_name(cls, label: str | None) -> str | None:
        if label is not None and not LABEL.fullmatch(label):
            raise ValueError("a label is one name of letters, digits, '.', '_' and '-'")
        return label


async def gate(options: GateOptions) -> int:
    """`slo-bench gate`: 0 when it passed or there was nothing to hold it against, 1 when it failed, 3 when open."""
    label = options.label or free_name(options.runs_dir, "gate")
    store = RunStore(options.runs_dir / label)
    store.check_unused()
    first = None if options.against is None else first_arm(options.against)
    plan = gate_plan(options, options, count=options.item_count())
    with SweepView((), marks=marks(options)) as view:
        view.say(f"{label}: {plan}" + (f", {options.concurrency} in flight" if plan.item_set else ""))
        confirm(options, is_agreed=options.yes)
        host = None
        if plan.item_set is not None:
            host = host_for(options, log_path=store.directory / "engine.log", say=view.say)
        record = replace(run_record(label, options, ()), kind="gate")
        document = await run_gate(
            host, plan, store, record=record, concurrency=options.concurrency, first=first, observe=telling(view.say)
        )
        for line in [*gate_lines(document), f"files: {store.directory}"]:
            view.say(line)
    return EXIT_CODES.get(document.outcome, 0)


async def run_gate(
    host: Host | None,
    plan: GatePlan,
    store: RunStore,
    *,
    record: RunRecord,
    concurrency: int,
    first: AccuracyRun | None,
    observe: Callable[[int], None] = lambda _: None,
) -> GatesDocument:
    """Hold the gate and write gates.json and run.json; nothing is written before the engine answers.

    host: None for a plan that applies to no engine, so that none is started.
    """
    telling = told(store, record, running_clock().utc().isoformat())
    if host is None:
        with telling:
            document = not_held(record.engine, plan, label=record.label)
            store.gates(document)
        return document
    async with host as running:
        with telling:
            store.engine(running.facts)
            document = await hold(
                running, plan, label=record.label, concurrency=concurrency, first=first, observe=observe
            )
            store.gates(document)
    return document
