"""Load workers on the nodes of a Ray cluster: the process of `traffic.worker_process`, reached through an actor.

An actor takes one core of its node, starts the worker beside itself and hands messages on, so that what sends the load
is the same process as on this machine, and nothing of Ray runs in it. Messages travel as Ray's own do: in clear text
unless the cluster has TLS. slo-bench must be installed on the nodes, in the same version.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import slo_bench
from traffic.clock import running_clock
from traffic.clock_line import offset_at, tell_clock
from traffic.clock_offset import ClockOffset, measured_offset
from traffic.errors import InvalidMeasurement, UsageError
from traffic.file_limit import raise_file_limit
from traffic.worker_port import LoadWorker
from traffic.worker_process import EXIT_LIMIT_S, READY_LIMIT_S, WorkerProcess

CONNECT_LIMIT_S = 30.0
CALL_LIMIT_S = 20.0
"""A worker under load says something ten times a second, and twice CANCEL_LIMIT_S is more than its last word takes."""

CLOCK_LIMIT_S = 5.0
NO_RAY = "--ray-address needs Ray: pip install 'slo-bench[ray]'"

_QUIET = {"RAY_usage_stats_enabled": "0"}
"""Nothing of a measurement is told to anybody, and what goes wrong is one line of ours."""

_NOT_THERE = "slo-bench is not installed there"
_REACH_LIMIT_S = 5.0
_TEXT_CHARS = 200
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

StartWorker = Callable[[], Awaitable[LoadWorker]]


def has_ray() -> bool:
    """Whether the extra is installed; it is not imported."""
    return find_spec("ray") is not None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Where a worker came to run. clock_port: where its clock is told. version: of slo-bench there."""

    address: str
    pid: int
    clock_port: int
    version: str


class NodeWorker:
    """On a node: one load worker, and the clock of its machine. All methods are called from elsewhere."""

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None
        self._clock: asyncio.Server | None = None

    async def start(self) -> NodeFacts:
        """Start the worker. Raises InvalidMeasurement when the node allows no more processes."""
        raise_file_limit()  # the worker inherits it
        self._process = await WorkerProcess.start()
        address = _ray().util.get_node_ip_address()
        self._clock, port = await tell_clock(address)
        return NodeFacts(address, self._process.pid, port, slo_bench.__version__)

    def _worker(self) -> WorkerProcess:
        assert self._process is not None  # noqa: S101 - `start` comes first
        return self._process

    async def send(self, message: object) -> None:
        """Hand a message to the worker."""
        await self._worker().send(message)

    async def receive(self) -> object:
        """The worker's next message; None when it is dead. Raises what went wrong in it."""
        return await self._worker().receive()

    async def death(self) -> str:
        """How it died."""
        return await self._worker().death()

    async def end(self, limit_s: float) -> None:
        """End it, by force after limit_s."""
        await self._worker().end(limit_s)

    async def now_s(self) -> float:
        """CLOCK_MONOTONIC of this machine, by which the worker sends; for who cannot reach the port."""
        return time.monotonic()


class RayWorker:
    """A load worker on some node. It starts with its first message, so that many do at once.

    actor: the handle of a `NodeWorker`. call_limit_s: a call that takes longer finds the node lost.
    """

    def __init__(self, actor: Any, *, call_limit_s: float = CALL_LIMIT_S) -> None:
        self._actor = actor
        self._call_limit_s = call_limit_s
        self._facts: NodeFacts | None = None
        self._lost: str | None = None
        self.is_alive = True

    @property
    def pid(self) -> int:
        """Process id on its node; 0 before it has started."""
        return 0 if self._facts is None else self._facts.pid

    @property
    def place(self) -> str:
        """Its node, and the process there."""
        return "a node" if self._facts is None else f"{self._facts.address}/{self._facts.pid}"

    async def send(self, message: object) -> None:
        """Send it a message, which nobody hears when it is dead.

        The first one starts it: raises UsageError for another slo-bench there, InvalidMeasurement where it cannot.
        """
        if self._facts is None:
            await self._start()
        if self.is_alive:
            await self._called("send", message, limit_s=self._call_limit_s)

    async def _start(self) -> None:
        facts = await self._called("start", limit_s=READY_LIMIT_S)
        if facts is None:
            raise InvalidMeasurement(await self.death())
        self._facts = facts
        if facts.version != slo_bench.__version__:
            raise UsageError(
                f"the node {facts.address} has slo-bench {facts.version}, this machine {slo_bench.__version__}: "
                "install the same on both"
            )

    async def receive(self) -> object:
        """Its next message; None when it is dead, or silent for call_limit_s. Raises what went wrong in it."""
        message = await self._called("receive", limit_s=self._call_limit_s)
        self.is_alive = self.is_alive and message is not None
        return message

    async def clock_offset(self) -> ClockOffset:
        """The clock of its node beside ours. Raises InvalidMeasurement for a node that does not say.

        Where its port cannot be reached Ray's own calls ask, whose round trips are several times as long.
        """
        if self._facts is None or self._lost is not None:
            raise InvalidMeasurement(await self.death())
        try:
            async with asyncio.timeout(CLOCK_LIMIT_S):
                return await offset_at(self._facts.address, self._facts.clock_port)
        except OSError:
            return await self._offset_by_calls()

    async def _offset_by_calls(self) -> ClockOffset:
        try:
            async with asyncio.timeout(CLOCK_LIMIT_S):
                return await measured_offset(self._now_s, running_clock().now_s)
        except TimeoutError:
            raise InvalidMeasurement(f"the clock of {self.place} was not read within {CLOCK_LIMIT_S:g} s") from None

    async def _now_s(self) -> float:
        there_s = await self._called("now_s", limit_s=CLOCK_LIMIT_S)
        if there_s is None:
            raise InvalidMeasurement(await self.death())
        return float(there_s)

    async def death(self) -> str:
        """How it died, in one line."""
        said = None if self._lost is not None else await self._called("death", limit_s=2 * EXIT_LIMIT_S)
        return f"{said} on {self.place}" if said else f"a load worker on {self.place} was lost ({self._lost})"

    async def end(self, limit_s: float = EXIT_LIMIT_S) -> None:
        """End it and its actor, whatever the node does."""
        try:
            if self._facts is not None and self._lost is None and limit_s > 0:
                await self._called("end", limit_s, limit_s=limit_s + EXIT_LIMIT_S)
        finally:
            self.is_alive = False
            with suppress(_ray().exceptions.RayError):
                _ray().kill(self._actor)

    async def _called(self, method: str, *arguments: object, limit_s: float) -> Any:
        """What a method of the actor returns or raises; None where it is lost, and why is kept."""
        errors = _ray().exceptions
        try:
            async with asyncio.timeout(limit_s):
                return await getattr(self._actor, method).remote(*arguments)
        except TimeoutError:
            self._lose(f"no answer within {limit_s:g} s")
        except errors.RayTaskError as error:
            self.is_alive = False
            raise error.cause or error from None
        except errors.RayError as error:
            self._lose(_NOT_THERE if "No module named" in str(error) else "its node or its actor is gone")
        return None

    def _lose(self, why: str) -> None:
        self.is_alive = False
        self._lost = self._lost or why


@asynccontextmanager
async def ray_nodes(address: str, count: int, *, server_url: str) -> AsyncIterator[StartWorker]:
    """How to start one of `count` load workers on the cluster at that address, "auto" for the one of this machine.

    Raises UsageError for a cluster that does not answer, that has too few free cores, or whose nodes cannot reach the
    server at `server_url`.
    """
    ray = await _connected(address)
    try:
        _check(ray, count, server_url)
        actor = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", max_concurrency=100)(NodeWorker)

        async def start() -> RayWorker:
            return RayWorker(actor.remote())

        yield start
    finally:
        await asyncio.to_thread(ray.shutdown)


def _check(ray: Any, count: int, server_url: str) -> None:
    """One core for each worker, and a server that all of them can reach."""
    free = int(ray.available_resources().get("CPU", 0))
    if free < count:
        raise UsageError(f"the Ray cluster has {free} free cores for {count} load workers: lower --load-workers")
    host = urlsplit(server_url).hostname
    here = ray.util.get_node_ip_address()
    others = [place for each in ray.nodes() if each["Alive"] and (place := each["NodeManagerAddress"]) != here]
    if host in _LOOPBACK and others:
        raise UsageError(f"the node {others[0]} cannot reach {host}: give the server's address in --base-url")


async def _connected(address: str) -> Any:
    """Ray, connected. From a thread, since it waits for minutes, and takes signals over in the main one."""
    if address != "auto":
        await _reached(address)
    done: Future[Any] = Future()
    done.set_running_or_notify_cancel()  # whoever stops waiting leaves it to the thread

    def connect() -> None:
        try:
            done.set_result(_initialised(address))
        except BaseException as error:  # noqa: BLE001 - it is raised over there; Ray also exits
            done.set_exception(error)

    threading.Thread(target=connect, name="ray-connect", daemon=True).start()
    try:
        async with asyncio.timeout(CONNECT_LIMIT_S):
            return await asyncio.wrap_future(done)
    except TimeoutError:
        raise UsageError(f"no Ray cluster answered at {address} within {CONNECT_LIMIT_S:g} s") from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"--ray-address {address}: {_refusal(error)}") from None


async def _reached(address: str) -> None:
    """Raise UsageError where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_REACH_LIMIT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError as error:
        reason = (error.strerror or str(error) or "no answer").lower()
        raise UsageError(f"no Ray cluster at {address} ({reason})") from None
    writer.close()


def _initialised(address: str) -> Any:
    ray = _ray()
    ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
    return ray


def _ray() -> Any:
    """The module: it takes a second, and reads its environment when it is imported."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray  # noqa: PLC0415 - see above

    return ray


def _refusal(error: BaseException) -> str:
    """Why Ray did not connect, and what to do."""
    causes: list[str] = []
    fault: BaseException | None = error
    while fault is not None:
        causes.append(str(fault))
        fault = fault.__cause__
    if any("AuthenticationError" in cause or "InvalidAuthToken" in cause for cause in causes):
        return "the cluster asks for its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN as on its nodes"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line[:_TEXT_CHARS] for line in lines if line), type(error).__name__)
