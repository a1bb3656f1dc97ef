"""Load workers for a running host, where more than one process is to send, or another machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slo_bench.hosts import RunningHost
from slo_bench.ray_workers import ray_nodes
from traffic.errors import UsageError
from traffic.workers import LoadWorkers


@asynccontextmanager
async def load_workers(
    running: RunningHost, count: int, ray_address: str | None = None
) -> AsyncIterator[LoadWorkers | None]:
    """`count` processes that send in this one's place; None for one, which is this one itself.

    ray_address: they run on the nodes of that Ray cluster, a single one too. Raises UsageError for an engine that no
    other process can reach, and as `ray_nodes`.
    """
    if count == 1 and ray_address is None:
        yield None
        return
    recipe = running.recipe
    if recipe is None:
        raise UsageError("--load-workers goes with a server: this engine lives in this process alone")
    if ray_address is None:
        async with LoadWorkers(recipe, count) as workers:
            yield workers
        return
    async with (
        ray_nodes(ray_address, count, server_url=recipe.endpoint.url) as start,
        LoadWorkers(recipe, count, start) as workers,
    ):
        yield workers
