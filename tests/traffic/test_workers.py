"""Several senders of one schedule: the same load and the same facts as of one, whoever of them dies.

Here workers live in this process, joined by channels in memory, so that virtual time can tell exactly;
`test_worker_processes` has the real ones.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from engines import Act, Scripted, answer, broken, loop_s, schedule, silent, stubborn

from traffic.channel import Begin, Prepare, Ready
from traffic.errors import EngineError, InvalidMeasurement
from traffic.garbage import resting_collector
from traffic.http_client import Bounds, build_client
from traffic.probe import ProbeFacts, Stop, run_probe
from traffic.recipe import EndpointRecipe, EngineRecipe
from traffic.records import End, Flight, Request
from traffic.schedule import Draw, Schedule, open_loop
from traffic.virtual_time import run_virtual
from traffic.worker import REPORT_S, attend
from traffic.worker_process import READY_LIMIT_S, WorkerProcess
from traffic.workers import STOP_LIMIT_S, LoadWorkers
from traffic.workload import CHAT_MIX

RECIPE = EngineRecipe(
    EndpointRecipe("http://127.0.0.1:9", "sk-secret", {"X-Tenant": "blue"}, Path("ca.pem"), Bounds(), build_client),
    "m",
    extra_body={},
    forces_length=True,
    continuous_usage=True,
)
EVERY_HALF_SECOND = [0.1 + 0.5 * step for step in range(28)]


@pytest.fixture(autouse=True, scope="module")
def _rest() -> Iterator[None]:
    """Each worker rests its collector, which first costs a tenth of a second here: once is enough."""
    with resting_collector():
        yield


class MemoryChannel:
    """One end of a channel; messages are pickled as on the way through a socket."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.other = self
        self.is_open = True

    async def send(self, message: object) -> None:
        if not self.other.is_open:
            raise ConnectionResetError
        self.other.inbox.put_nowait(pickle.dumps(message))

    async def receive(self) -> object:
        body = await self.inbox.get()
        return None if body is None else pickle.loads(body)  # noqa: S301 - our own

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.other.inbox.put_nowait(None)


class Crew:
    """Starts workers in this process. spoil: what the worker with that number, counted from 0, is instead."""

    def __init__(self, act: Act, other: Mapping[int, Act] | None = None, **spoil: Callable[[Any], Any]) -> None:
        self.engines: list[Scripted] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.channels: list[MemoryChannel] = []
        self._act, self._other = act, other
        self._spoil = spoil

    async def start(self) -> WorkerProcess:
        near, far = MemoryChannel(), MemoryChannel()
        near.other, far.other = far, near
        engine = Scripted(self._act, self._other)

        @asynccontextmanager
        async def make(recipe: EngineRecipe) -> AsyncIterator[Scripted]:
            assert recipe == RECIPE
            yield engine

        work = self._spoil.get(f"worker_{len(self.tasks)}", lambda channel: attend(channel, make))
        task = asyncio.create_task(work(cast("Any", far)))
        self.engines.append(engine)
        self.tasks.append(task)
        self.channels.append(far)
        process = cast("Any", _Process(task, len(self.tasks)))
        return WorkerProcess(process, cast("Any", near), tempfile.TemporaryFile())


class _Process:
    """What a `subprocess.Popen` of a worker in this process would say."""

    def __init__(self, task: asyncio.Task[None], pid: int) -> None:
        self._task = task
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self._task.done():
            self.returncode = 0
        return self.returncode

    def kill(self) -> None:
        self.returncode = -9
        self._task.cancel()

    def wait(self) -> None: ...


def through(crew: Crew, plan: Schedule, workers: int = 2, loads: int = 1, **more: Any) -> list[ProbeFacts]:
    """Loads sent by a crew, one after the other; nothing is left of it afterwards."""

    async def main() -> list[ProbeFacts]:
        try:
            async with LoadWorkers(RECIPE, workers, crew.start) as pool:
                facts = [await run_probe(Scripted(silent()), plan, workers=pool, **more) for _ in range(loads)]
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert [engine.open for engine in crew.engines] == [0] * len(crew.engines)
        return facts

    return run_virtual(main())


def plan_of(seed: int) -> Schedule:
    return open_loop(
        Draw(CHAT_MIX, seed, 0), rate_rps=8.0, ramp_s=2.0, duration_s=8.0, drain_limit_s=lambda _: 5.0, text=None
    )


def rounded(facts: ProbeFacts) -> list[tuple[object, ...]]:
    """Records without the float's last digits: a worker counts from another start."""
    return [
        (each.index, each.due_s, round(each.sent_s or -1, 6), round(each.ttft_s or -1, 6), each.end, each.in_cohort)
        for each in facts.records
        if each.due_s < 10.0
    ]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_facts_are_those_of_one_sender_however_many_there_are(workers: int) -> None:
    plan = plan_of(3)
    (shared,) = through(Crew(answer(tokens=3)), plan, workers)
    alone = run_virtual(run_probe(Scripted(answer(tokens=3)), plan))
    assert rounded(shared) == rounded(alone)
    assert shared.window == alone.window
    assert (shared.stop, shared.workers, alone.workers) == (Stop.COMPLETE, workers, 1)
    assert alone.load_s <= shared.load_s <= alone.load_s + 2 * REPORT_S


def test_each_worker_sends_its_part_of_the_schedule() -> None:
    crew = Crew(answer())
    through(crew, schedule(EVERY_HALF_SECOND), 3)
    parts = [[request.index for request in engine.received] for engine in crew.engines]
    assert [part[:3] for part in parts] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_turns_of_a_conversation_stay_with_their_worker_and_are_told() -> None:
    first, other, later, last = schedule([0.5, 0.7, 1.0, 2.0]).requests
    turns = (first, other, replace(later, after=0, think_s=0.5), replace(last, after=2, think_s=20.0))
    crew = Crew(answer())
    (facts,) = through(crew, Schedule(schedule([]).window, turns))
    assert [[request.index for request in engine.received] for engine in crew.engines] == [[0, 2], [1]]
    assert facts.records[2].due_s == pytest.approx(0.5 + 0.12 + 0.5)
    assert (facts.window.scheduled, facts.abandoned_turns) == (3, 1)


def test_the_view_and_the_referee_hear_of_all_of_them() -> None:
    told: list[int] = []
    looks: list[tuple[int, int]] = []

    class Watcher:
        def resolved(self, record: Any) -> None:
            told.append(record.index)

        def look(self, _now_s: float, in_flight: int, sent: int) -> Stop | None:
            looks.append((in_flight, sent))
            return Stop.LOST if sent >= 8 else None

    (facts,) = through(Crew(answer(), {5: silent()}), schedule(EVERY_HALF_SECOND), referee=Watcher())
    assert facts.stop is Stop.LOST
    assert sorted(told) == [0, 1, 2, 3, 4, 6, 7]
    assert looks == [(0, 2), (0, 4), (1, 6), (1, 8)]
    assert {each.index: each.end for each in facts.records if each.end is not End.FINISHED} == {5: End.UNRESOLVED}


def test_what_is_unfinished_at_the_drain_limit_is_told_so() -> None:
    (facts,) = through(Crew(answer(), {3: silent(tokens=2)}), schedule(EVERY_HALF_SECOND))
    assert facts.stop is Stop.DRAIN_LIMIT
    assert (facts.records[3].end, facts.records[3].output_tokens) == (End.UNFINISHED, 2)


def test_workers_serve_load_after_load() -> None:
    crew = Crew(answer())
    one, two = through(crew, schedule(EVERY_HALF_SECOND), loads=2)
    assert rounded(one) == rounded(two)
    assert len(crew.engines) == 2


def dying(at_s: float) -> Callable[[Any], Any]:
    """A worker that is gone in the middle of its load, without a word."""

    async def work(channel: Any) -> None:
        @asynccontextmanager
        async def make(_: EngineRecipe) -> AsyncIterator[Scripted]:
            yield Scripted(answer())

        task = asyncio.create_task(attend(channel, make))
        await asyncio.sleep(at_s)
        channel.close()
        task.cancel()
        await asyncio.wait((task,))

    return work


def test_a_worker_that_dies_ends_the_load_and_every_request_that_was_due_is_accounted_for() -> None:
    crew = Crew(answer(), worker_1=dying(4.2))
    (facts,) = through(crew, schedule(EVERY_HALF_SECOND))
    assert facts.stop is Stop.CLIENT
    assert facts.client_fault == "a load worker died (exit 0)"
    assert 4.2 <= facts.load_s <= 4.6
    assert [each.index for each in facts.records] == list(range(9))
    assert {each.end for each in facts.records if each.index % 2 == 0} == {End.FINISHED}


def test_a_worker_that_died_is_replaced_at_the_next_load() -> None:
    crew = Crew(answer(), worker_0=dying(4.2))
    one, two = through(crew, schedule(EVERY_HALF_SECOND), loads=2)
    assert (one.stop, two.stop, two.client_fault) == (Stop.CLIENT, Stop.COMPLETE, None)
    assert len(crew.engines) == 3


def test_a_worker_that_hangs_is_killed_and_told() -> None:
    async def deaf(channel: Any) -> None:
        for _ in range(2):
            await channel.receive()
            await channel.send(Ready())
        await asyncio.Event().wait()

    (facts,) = through(Crew(answer(), worker_1=deaf), schedule(EVERY_HALF_SECOND))
    assert facts.client_fault == f"a load worker did not answer within {STOP_LIMIT_S:g} s"
    assert [each.index for each in facts.records] == list(range(28))


def test_a_worker_that_never_gets_ready_is_told() -> None:
    async def mute(_: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(InvalidMeasurement, match=f"not ready within {READY_LIMIT_S:g} s"):
        through(Crew(answer(), worker_1=mute), schedule(EVERY_HALF_SECOND))


def test_a_worker_that_ends_at_once_is_told() -> None:
    async def gone(channel: Any) -> None:
        channel.close()

    with pytest.raises(InvalidMeasurement, match=r"a load worker died \(exit 0\)"):
        through(Crew(answer(), worker_0=gone), schedule(EVERY_HALF_SECOND))


def test_a_fault_of_the_program_in_a_worker_surfaces_with_its_place() -> None:
    crew = Crew(answer(), {4: broken(ZeroDivisionError("a fault"))})
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*ZeroDivisionError: a fault"):
        through(crew, schedule(EVERY_HALF_SECOND))


def test_an_engine_that_does_not_let_go_is_broken_as_ever() -> None:
    async def hang(request: Request, flight: Flight) -> None:
        await (stubborn(60.0) if request.index == 3 else answer())(request, flight)

    async def main() -> None:
        crew = Crew(hang)
        async with LoadWorkers(RECIPE, 2, crew.start) as pool:
            with pytest.raises(EngineError, match="1 cancelled requests did not end within 10 s"):
                await run_probe(Scripted(silent()), schedule(EVERY_HALF_SECOND), workers=pool)

    run_virtual(main())


def test_a_dead_server_and_a_cancellation_leave_nothing_behind() -> None:
    def check() -> None:
        if loop_s() > 3.0:
            raise EngineError("the server exited with 137")

    with pytest.raises(EngineError, match="exited with 137"):
        through(Crew(silent()), schedule(EVERY_HALF_SECOND), check=check)

    async def main() -> None:
        crew = Crew(silent())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.3), LoadWorkers(RECIPE, 2, crew.start) as pool:
                await run_probe(Scripted(silent()), schedule(EVERY_HALF_SECOND), workers=pool)
        assert [engine.open for engine in crew.engines] == [0, 0]
        assert all(task.done() for task in crew.tasks)

    run_virtual(main())


def test_the_start_is_set_when_every_worker_has_its_part() -> None:
    heard: list[tuple[float, object]] = []

    def slow(delay_s: float) -> Callable[[Any], Any]:
        async def work(channel: Any) -> None:
            while (order := await channel.receive()) is not None:
                heard.append((loop_s(), order))
                if isinstance(order, Prepare):
                    await asyncio.sleep(delay_s)
                if not isinstance(order, Begin):
                    await channel.send(Ready())

        return work

    async def main() -> None:
        crew = Crew(answer(), worker_0=slow(0.0), worker_1=slow(3.0))
        async with LoadWorkers(RECIPE, 2, crew.start) as pool:
            sender = await pool.begin(schedule(EVERY_HALF_SECOND), lambda _: None)
            await asyncio.sleep(0)
            begun = [(moment_s, order) for moment_s, order in heard if isinstance(order, Begin)]
            assert {order for _, order in begun} == {Begin(sender.origin_s)}
            assert sender.origin_s == pytest.approx(3.05)
            assert [moment_s for moment_s, _ in begun] == pytest.approx([3.0, 3.0])

    run_virtual(main())
