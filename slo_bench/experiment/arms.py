"""An experiment: arms in order on one loop, each swept, each measured at the first one's capacity.

An arm that fails is told and does not end the experiment: what ran before it is paid for, and what comes after it may
still answer the question. Only the first arm cannot be missed, since all others are held against it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reports.run_directory import ExperimentDocument, RunDocument, SweepDocument, read_document, to_json
from slo_bench.accuracy.after_sweep import after_arm, first_answers
from slo_bench.accuracy.holding import GatePlan
from slo_bench.earlier import LATER_STARTS, Earlier, read_earlier
from slo_bench.hosts import Host
from slo_bench.run import RunRecord, run_sweep
from slo_bench.store import RunStore, write_text
from slo_bench.sweep import Sweeper, SweepPlan, View
from traffic.clock import running_clock
from traffic.errors import EngineError, InvalidMeasurement, UsageError


@dataclass(frozen=True, slots=True)
class Arm:
    """One labelled configuration. host: makes its host, given how many servers were started before it.

    gate: the accuracy gate that it is held to, None for none. before: what is done before its server starts.
    """

    record: RunRecord
    host: Callable[[int], Host]
    gate: GatePlan | None = None
    before: Callable[[], Awaitable[None]] | None = None

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

    started_utc: str
    found: dict[str, SweepDocument]
    failed: dict[str, str]
    anchor_rps: float | None = None
    first_fault: EngineError | InvalidMeasurement | None = None


async def run_experiment(
    experiment: Experiment, directory: Path, view: View, say: Callable[[str], None], *, goes_on: bool = False
) -> Progress:
    """Sweep every arm and measure the anchor rate, which is the first arm's capacity.

    goes_on: arms of the directory that are done are taken as they are, one that was stopped goes on. Raises UsageError
    for two equal labels, and the first arm's fault.
    """
    labels = [arm.label for arm in experiment.arms]
    if len(set(labels)) < len(labels):
        raise UsageError(f"{experiment.label}: two arms have the same label")
    progress = Progress(_began_utc(experiment, directory) if goes_on else running_clock().utc().isoformat(), {}, {})
    for start, arm in enumerate(experiment.arms):
        say(f"arm {start + 1} of {len(labels)}: {arm.label}")
        store = RunStore(directory / "arms" / arm.label)
        earlier = read_earlier(store.directory, experiment.plan.load.slo) if goes_on and store.has_begun else None
        try:
            document = None if earlier is None else _done(earlier)
            if document is None:
                if arm.before is not None:
                    await arm.before()
                host = arm.host(start if earlier is None else start + LATER_STARTS * earlier.server_start)
                plan = replace(experiment.plan, label=arm.label)
                check, then = None, _at_the_anchor(progress.anchor_rps)
                if arm.gate is not None:
                    first = None if start == 0 else first_answers(directory / "arms" / labels[0])
                    check, then = after_arm(arm.gate, say, anchor=then, first=first)
                document = await run_sweep(
                    host, plan, store, view, record=arm.record, earlier=earlier, check=check, then=then
                )
        except (EngineError, InvalidMeasurement) as fault:
            if start == 0:
                raise
            progress.failed[arm.label] = str(fault)
            progress.first_fault = progress.first_fault or fault
            say(f"{arm.label}: {fault}")
        else:
            progress.found[arm.label] = document
            if start == 0:
                is_claimed = document.withheld_capacity_rps is None
                progress.anchor_rps = document.capacity_rps if is_claimed else document.withheld_capacity_rps
        write_text(directory / "experiment.json", to_json(_document(experiment, progress)))
    return progress


def _done(earlier: Earlier) -> SweepDocument | None:
    """The sweep of an arm that was measured to its end, None where it was not."""
    return earlier.sweep if earlier.run.status == "done" else None


def _began_utc(experiment: Experiment, directory: Path) -> str:
    """When the first arm that was measured began, else now."""
    for arm in experiment.arms:
        path = directory / "arms" / arm.label / "run.json"
        if path.exists():
            return read_document(path, RunDocument).started_utc
    return running_clock().utc().isoformat()


def _document(experiment: Experiment, progress: Progress) -> ExperimentDocument:
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
        started_utc=progress.started_utc,
        ended_utc=running_clock().utc().isoformat(),
    )


def _at_the_anchor(anchor_rps: float | None) -> Callable[[Sweeper, SweepDocument], Awaitable[SweepDocument]]:
    """What follows an arm's sweep. anchor_rps: None for the first arm, whose own capacity it is."""

    async def measure(sweeper: Sweeper, document: SweepDocument) -> SweepDocument:
        rate_rps = document.capacity_rps if anchor_rps is None else anchor_rps
        return document if rate_rps is None else await sweeper.anchor(rate_rps)

    return measure
