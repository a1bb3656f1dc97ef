"""An experiment: arms in order on one loop, each swept, each measured at the first one's capacity.

An arm that fails is told and does not end the experiment: what ran before it is paid for, and what comes after it may
still answer the question. Only the first arm cannot be missed, since all others are held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reports.run_directory import ExperimentDocument, RunDocument, SweepDocument, read_document, to_json
from slo_bench.hosts import Host
from slo_bench.run import RunRecord, run_sweep
from slo_bench.store import RunStore, write_text
from slo_bench.sweep import Sweeper, SweepPlan, View
from traffic.clock import running_clock
from traffic.errors import EngineError, InvalidMeasurement, UsageError


@dataclass(frozen=True, slots=True)
class Arm:
    """One labelled configuration. host: makes its host, given how many servers were started before it."""

    record: RunRecord
    host: Callable[[int], Host]

    @property
    def label(self) -> str:
        """The name of its folder."""
        return self.record.label


@dataclass(frozen=True, slots=True)
class Experiment:
    """Arms in order; the first is the baseline. drift_arm: the arm that repeats it, last."""

    label: str
    title: str
    arms: Sequence[Arm]
    drift_arm: str | None
    plan: SweepPlan


@dataclass(slots=True)
class Progress:
    """What an experiment has so far: the sweep of each arm, and why an arm has none."""

    found: dict[str, SweepDocument]
    failed: dict[str, str]
    anchor_rps: float | None = None
    first_fault: EngineError | InvalidMeasurement | None = None


async def run_experiment(
    experiment: Experiment, directory: Path, view: View, say: Callable[[str], None], *, goes_on: bool = False
) -> Progress:
    """Sweep every arm and measure the anchor rate, which is the first arm's capacity.

    goes_on: arms of the directory that are done are taken as they are. Raises UsageError for two equal labels, and the
    first arm's fault.
    """
    labels = [arm.label for arm in experiment.arms]
    if len(set(labels)) < len(labels):
        raise UsageError(f"{experiment.label}: two arms have the same label")
    started_utc = running_clock().utc().isoformat()
    progress = Progress({}, {})
    for start, arm in enumerate(experiment.arms):
        say(f"arm {start + 1} of {len(labels)}: {arm.label}")
        store = RunStore(directory / "arms" / arm.label)
        document = _done(store) if goes_on else None
        try:
            if document is None:
                document = await _run_arm(experiment, arm, store, view, start=start, anchor_rps=progress.anchor_rps)
        except (EngineError, InvalidMeasurement) as fault:
            if start == 0:
                raise
            progress.failed[arm.label] = str(fault)
            progress.first_fault = progress.first_fault or fault
            say(f"{arm.label}: {fault}")
        else:
            progress.found[arm.label] = document
            if start == 0:
                progress.anchor_rps = document.capacity_rps
        write_text(directory / "experiment.json", to_json(_document(experiment, progress, started_utc)))
    return progress


def _done(store: RunStore) -> SweepDocument | None:
    """The sweep of an arm that was measured to its end, None where it was not."""
    if not (store.directory / "run.json").exists():
        return None
    if read_document(store.directory / "run.json", RunDocument).status != "done":
        return None
    return read_document(store.directory / "sweep.json", SweepDocument)


def _document(experiment: Experiment, progress: Progress, started_utc: str) -> ExperimentDocument:
    arms = list(progress.found)
    return ExperimentDocument(
        schema_version=1,
        label=experiment.label,
        title=experiment.title,
        seed=experiment.plan.load.seed,
        engine=progress.found[arms[0]].engine,
        arms=arms,
        failed=progress.failed,
        baseline=arms[0],
        drift_arm=experiment.drift_arm if experiment.drift_arm in progress.found else None,
        anchor_rps=progress.anchor_rps,
        started_utc=started_utc,
        ended_utc=running_clock().utc().isoformat(),
    )


async def _run_arm(
    experiment: Experiment, arm: Arm, store: RunStore, view: View, *, start: int, anchor_rps: float | None
) -> SweepDocument:
    async def at_the_anchor(sweeper: Sweeper, document: SweepDocument) -> SweepDocument:
        rate_rps = document.capacity_rps if anchor_rps is None else anchor_rps
        return document if rate_rps is None else await sweeper.anchor(rate_rps)

    plan = replace(experiment.plan, label=arm.label)
    return await run_sweep(arm.host(start), plan, store, view, record=arm.record, then=at_the_anchor)
