"""The simulated engine as a host: one server start, on the running loop, real or virtual."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType

from gates.cause import ServerLimits
from slo_bench.hosts import EngineFacts, RunningHost
from slo_bench.scrape import simulated_look
from slo_bench.simulate.answers import AnsweringEngine, KnownAnswers
from slo_bench.simulate.metrics import ServerMetrics
from traffic.engine import Engine
from traffic.errors import EngineError
from traffic.records import End, Flight, Message, Request
from traffic.server_facts import Look
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel

MODEL_ID = "simulated-moe"


class RunningSimulation:
    """A simulated engine that answers; see `slo_bench.hosts.RunningHost`."""

    def __init__(self, engine: SimulatedEngine, metrics: ServerMetrics, start: int, known: KnownAnswers | None) -> None:
        self._engine = engine
        self._answering = engine if known is None else AnsweringEngine(engine, known)
        self._metrics = metrics
        settings = engine.model.settings
        self._facts = EngineFacts(
            kind="simulated",
            model=MODEL_ID,
            max_model_len=settings.max_model_len,
            version=None,
            start=start,
            limits=ServerLimits(settings.max_num_seqs, settings.max_num_batched_tokens),
            details=dataclasses.asdict(settings) | ({} if known is None else known.details()),
        )

    @property
    def engine(self) -> Engine:
        """Where requests go."""
        return self._answering

    @property
    def facts(self) -> EngineFacts:
        """Its settings are the details; it has no version but ours."""
        return self._facts

    @property
    def recipe(self) -> None:
        """None: it lives in this process."""

    @property
    def needs_text(self) -> bool:
        """Lengths are enough."""
        return False

    async def count_tokens(self, messages: Sequence[Message]) -> int | None:  # noqa: ARG002 (the port names it)
        """None: it has no tokenizer, and a request's input_tokens are its prompt."""
        return None

    def check(self) -> None:
        """It cannot die on its own."""

    def look(self) -> Look:
        """Its counts as they stand."""
        return simulated_look(self._metrics)

    def compilations(self) -> None:
        """None: it has no log."""

    async def wait_idle(self, limit_s: float) -> None:
        """Return when nothing is queued or running; EngineError after limit_s."""
        try:
            async with asyncio.timeout(limit_s):
                await self._engine.wait_idle()
        except TimeoutError:
            model = self._engine.model
            raise EngineError(
                f"the simulated engine was not idle after {limit_s:g} s: "
                f"{model.running} running, {model.waiting} waiting; cancel what is under way first"
            ) from None


class SimulatedHost:
    """Starts a simulated server: async context manager of a RunningHost.

    seed and start choose the noise; the load's seed is another. drift_origin_s: loop time at which drift is 0. Under
    the virtual loop that is 0, so that all servers of an experiment share their drift; on a real loop, whose clock
    started with the machine, pass the moment at which the experiment began. known: answers that it knows by heart.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        seed: int = 0,
        start: int = 0,
        drift_origin_s: float = 0.0,
        known: KnownAnswers | None = None,
    ) -> None:
        self._settings = settings
        self._known = known
        self._seed = seed
        self._start = start
        self._drift_origin_s = drift_origin_s
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> RunningHost:
        """Start it and have one request answered."""
        model = StepModel(self._settings, self._seed, self._start, origin_s=self._drift_origin_s)
        async with AsyncExitStack() as stack:
            metrics = ServerMetrics(model, MODEL_ID)
            engine = await stack.enter_async_context(SimulatedEngine(model, metrics.step))
            flight = Flight()
            await engine.generate(Request(index=0, due_s=0.0, kind="ready", input_tokens=1, output_tokens=1), flight)
            if flight.end is not End.FINISHED:
                raise EngineError(f"the simulated engine did not answer its first request: {flight.error}")
            await engine.wait_idle()
            self._stack = stack.pop_all()
        return RunningSimulation(engine, metrics, self._start, self._known)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        await self._stack.aclose()
