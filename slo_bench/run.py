"""One run on one server start: from a host to the documents of its directory, whatever the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from reports.cost import CostDocument, cost
from reports.run_directory import EngineKind, RunDocument, Status, SweepDocument
from slo_bench.bench import Bench
from slo_bench.earlier import Earlier
from slo_bench.environment import environment
from slo_bench.hosts import Host, RunningHost
from slo_bench.load_workers import load_workers
from slo_bench.power.measuring import Power, measuring
from slo_bench.scrape import watching
from slo_bench.store import RunStore
from slo_bench.surroundings import Surroundings
from slo_bench.sweep import Sweeper, SweepPlan, View
from traffic.clock import running_clock
from traffic.errors import InvalidMeasurement, SloBenchError


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What run.json says of a run whatever its end: which engine, and the configuration that reproduces it.

    around: what is read and known of the machine beside the engine; it has files of its own.
    """

    label: str
    engine: EngineKind
    seed: int
    config: Mapping[str, object]
    kind: Literal["sweep", "compare", "gate", "tune"] = "sweep"
    around: Surroundings = field(default_factory=Surroundings)


async def run_sweep(
    host: Host,
    plan: SweepPlan,
    store: RunStore,
    view: View,
    *,
    record: RunRecord,
    earlier: Earlier | None = None,
    check: Callable[[RunningHost], Awaitable[object]] | None = None,
    then: Callable[[Sweeper, SweepDocument], Awaitable[SweepDocument]] | None = None,
) -> SweepDocument:
    """Start or find the engine and sweep; then: what else is measured on the same server start.

    check: raises UsageError for an engine that cannot take what comes then, before load starts. earlier: what the
    directory holds of this run, which goes on. run.json tells how it ended; of a new run nothing is
    written before the engine answers.
    """
    now_utc = running_clock().utc().isoformat()
    telling = told(store, record, now_utc)
    with ExitStack() as before_it_answers:
        if earlier is not None:
            store.go_on(earlier.server_start)
            record = replace(record, config=earlier.run.config)
            resumed_utc = [*earlier.run.resumed_utc, now_utc]
            telling = told(store, record, earlier.run.started_utc, resumed_utc)
            before_it_answers.enter_context(telling)
        async with (
            measuring(record.around.power) as power,
            host as running,
            watching(running.look()) as scraper,
            load_workers(running, plan.load.workers, plan.load.ray_address) as workers,
        ):
            power.server_is_up()
            if check is not None:
                await check(running)
            bench = await Bench.prepare(running, plan.load, scraper, workers, power=power)
            with telling if earlier is None else before_it_answers.pop_all():
                store.engine(await record.around.facts(running.facts, power))
                try:
                    sweeper = Sweeper(bench, plan, store, view, earlier)
                    document = await sweeper.run()
                    document = document if then is None else await then(sweeper, document)
                    store.cost(_cost(document, record.around, power, now_utc))
                    return document
                finally:
                    if scraper is not None:
                        store.metrics(scraper)
                    store.power(power)


def _cost(document: SweepDocument, around: Surroundings, power: Power, began_utc: str) -> CostDocument:
    """The cost of this server start so far."""
    return cost(
        document,
        usd_per_hour=around.usd_per_hour,
        gpus=around.gpu_count(power),
        started_utc=began_utc,
        ended_utc=running_clock().utc().isoformat(),
    )


@contextmanager
def told(store: RunStore, record: RunRecord, started_utc: str, resumed_utc: Sequence[str] = ()) -> Iterator[None]:
    """run.json, while it runs and with the way it ended."""

    def write(status: Status, reason: str | None) -> None:
        store.run(
            RunDocument(
                schema_version=1,
                kind=record.kind,
                label=record.label,
                status=status,
                reason=reason,
                engine=record.engine,
                seed=record.seed,
                config=dict(record.config),
                environment=environment(),
                started_utc=started_utc,
                resumed_utc=list(resumed_utc),
                ended_utc=None if status == "running" else running_clock().utc().isoformat(),
            )
        )

    write("running", None)
    status: Status = "failed"
    reason: str | None = "a fault of the program; see its traceback"
    try:
        yield
        status, reason = "done", None
    except InvalidMeasurement as error:
        status, reason = "invalid", str(error)
        raise
    except SloBenchError as error:
        reason = str(error)
        raise
    except asyncio.CancelledError:
        status, reason = "interrupted", "stopped by a signal"
        raise
    finally:
        write(status, reason)
