"""One run on one server start: from a host to the documents of its directory, whatever the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from reports.run_directory import EngineKind, RunDocument, Status, SweepDocument
from slo_bench.bench import Bench
from slo_bench.environment import environment
from slo_bench.hosts import Host
from slo_bench.load_workers import load_workers
from slo_bench.scrape import watching
from slo_bench.store import RunStore
from slo_bench.sweep import Sweeper, SweepPlan, View
from traffic.clock import running_clock
from traffic.errors import InvalidMeasurement, SloBenchError


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What run.json says of a run whatever its end: which engine, and the configuration that reproduces it."""

    label: str
    engine: EngineKind
    seed: int
    config: Mapping[str, object]
    kind: Literal["sweep", "compare"] = "sweep"


async def run_sweep(
    host: Host,
    plan: SweepPlan,
    store: RunStore,
    view: View,
    *,
    record: RunRecord,
    then: Callable[[Sweeper, SweepDocument], Awaitable[SweepDocument]] | None = None,
) -> SweepDocument:
    """Start or find the engine and sweep; then: what else is measured on the same server start.

    run.json tells how it ended; nothing is written before the engine answers.
    """
    started_utc = running_clock().utc().isoformat()
    async with (
        host as running,
        watching(running.look()) as scraper,
        load_workers(running, plan.load.workers) as workers,
    ):
        bench = await Bench.prepare(running, plan.load, scraper, workers)
        with told(store, record, started_utc):
            store.engine(running.facts)
            try:
                sweeper = Sweeper(bench, plan, store, view)
                document = await sweeper.run()
                return document if then is None else await then(sweeper, document)
            finally:
                if scraper is not None:
                    store.metrics(scraper)


@contextmanager
def told(store: RunStore, record: RunRecord, started_utc: str) -> Iterator[None]:
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
