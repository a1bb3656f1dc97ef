"""Load workers for a running host, where more than one process is to send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slo_bench.hosts import RunningHost
from traffic.errors import UsageError
from traffic.workers import LoadWorkers


@asynccontextmanager
async def load_workers(running: RunningHost, count: int) -> AsyncIterator[LoadWorkers | None]:
    """`count` processes that send in this one's place; None for one, which is this one itself.

    Raises UsageError for an engine that no other process can reach.
    """
    if count == 1:
        yield None
        return
    recipe = running.recipe
    if recipe is None:
        raise UsageError("--load-workers goes with a server: this engine lives in this process alone")
    async with LoadWorkers(recipe, count) as workers:
        yield workers
