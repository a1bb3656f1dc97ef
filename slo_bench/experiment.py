"""An experiment: arms in order on one loop, each swept, each measured at the first one's capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reports.run_directory import ExperimentDocument, RunDocument, SweepDocument, to_json
from slo_bench.bench import Bench
from slo_bench.environment import environment
from slo_bench.hosts import Host
from slo_bench.scrape import watching
from slo_bench.store import RunStore, write_text
from slo_bench.sweep import Sweeper, SweepPlan, View
from traffic.clock import running_clock
from traffic.errors import UsageError


@dataclass(frozen=True, slots=True)
class Arm:
    """One labelled configuration. host: makes its host, given how many servers were started before it."""

    label: str
    host: Callable[[int], Host]
    config: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Arms in order; the first is the baseline. drift_arm: the arm that repeats it, last. command: reproduces it."""

    label: str
    title: str
    command: Sequence[str]
    arms: Sequence[Arm]
    drift_arm: str | None
    plan: SweepPlan


async def run_experiment(
    experiment: Experiment, directory: Path, view: View, say: Callable[[str], None]
) -> dict[str, SweepDocument]:
    """Sweep every arm and measure the anchor rate; the sweep of each arm by its label.

    The anchor is the first arm's capacity. Raises UsageError for two equal labels or a used directory.
    """
    labels = [arm.label for arm in experiment.arms]
    if len(set(labels)) < len(labels):
        raise UsageError(f"{experiment.label}: two arms have the same label")
    RunStore(directory).check_unused()
    started_utc = running_clock().utc().isoformat()
    found: dict[str, SweepDocument] = {}
    anchor_rps: float | None = None
    for start, arm in enumerate(experiment.arms):
        say(f"arm {start + 1} of {len(labels)}: {arm.label}")
        found[arm.label] = await _run_arm(
            experiment, arm, start=start, directory=directory, view=view, anchor_rps=anchor_rps
        )
        if anchor_rps is None:
            anchor_rps = found[arm.label].capacity_rps
        document = ExperimentDocument(
            schema_version=1,
            label=experiment.label,
            title=experiment.title,
            seed=experiment.plan.load.seed,
            engine=found[arm.label].engine,
            arms=labels[: start + 1],
            baseline=labels[0],
            drift_arm=experiment.drift_arm if experiment.drift_arm in found else None,
            anchor_rps=anchor_rps,
            started_utc=started_utc,
            ended_utc=running_clock().utc().isoformat(),
        )
        write_text(directory / "experiment.json", to_json(document))
    return found


async def _run_arm(
    experiment: Experiment, arm: Arm, *, start: int, directory: Path, view: View, anchor_rps: float | None
) -> SweepDocument:
    store = RunStore(directory / "arms" / arm.label)
    plan = replace(experiment.plan, label=arm.label)
    started_utc = running_clock().utc().isoformat()
    async with arm.host(start) as running, watching(running.look()) as scraper:
        bench = await Bench.prepare(running, plan.load, scraper)
        store.engine(running.facts)
        sweeper = Sweeper(bench, plan, store, view)
        document = await sweeper.run()
        rate_rps = document.capacity_rps if anchor_rps is None else anchor_rps
        if rate_rps is not None:
            document = await sweeper.anchor(rate_rps)
        if scraper is not None:
            store.metrics(scraper)
        store.run(
            RunDocument(
                schema_version=1,
                kind="sweep",
                label=arm.label,
                status="done",
                engine=running.facts.kind,
                seed=plan.load.seed,
                config={
                    **arm.config,
                    "workload": plan.load.workload.name,
                    "length_scale": plan.load.length_scale,
                    "objectives": [str(each) for each in plan.load.slo],
                    "mode": plan.mode.name,
                    "command": list(experiment.command),
                },
                environment=environment(),
                started_utc=started_utc,
                ended_utc=running_clock().utc().isoformat(),
            )
        )
    return document
