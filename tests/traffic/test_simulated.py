import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import astuple

import numpy as np
import pytest

from traffic.arrivals import POISSON
from traffic.clock import sleep_until
from traffic.records import End, Flight, Request
from traffic.simulated import SimulatedEngine, TokenCallback
from traffic.step_model import EngineSettings, StepModel, StepOutcome
from traffic.virtual_time import VirtualLoop, run_virtual
from traffic.workload import CHAT_MIX

SETTINGS = EngineSettings()


def request(due_s: float, input_tokens: int, output_tokens: int) -> Request:
    return Request(index=0, due_s=due_s, kind="test", input_tokens=input_tokens, output_tokens=output_tokens)


async def chat_on_a_fresh_engine(
    rate_rps: float, horizon_s: float, *, beside: int = 0
) -> tuple[list[Request], list[Flight]]:
    """The chat mix; with `beside` one answer of so many tokens first, which keeps the engine from being idle."""
    due_s = POISSON.due_s(rate_rps, 0, 0, horizon_s)
    lengths = CHAT_MIX.draw(0, 0, len(due_s))
    each = zip(due_s.tolist(), lengths.input_tokens.tolist(), lengths.output_tokens.tolist(), strict=True)
    requests = [request(0.0, 10, beside)] * (beside > 0) + [request(*one) for one in each]
    flights = [Flight() for _ in requests]
    async with SimulatedEngine(StepModel(SETTINGS, 0)) as engine, asyncio.TaskGroup() as group:
        for one, flight in zip(requests, flights, strict=True):
            await sleep_until(one.due_s)
            group.create_task(engine.generate(one, flight))
    return requests, flights


def assert_times_are_the_models(requests: list[Request], flights: list[Flight]) -> None:
    driven = StepModel(SETTINGS, 0).drive(
        np.array([flight.sent_s for flight in flights]),
        np.array([one.input_tokens for one in requests]),
        np.array([one.output_tokens for one in requests]),
    )
    assert [flight.first_token_s for flight in flights] == driven.first_token_s.tolist()
    assert [flight.last_token_s for flight in flights] == driven.last_token_s.tolist()
    assert [flight.ended_s for flight in flights] == driven.ended_s.tolist()
    assert [flight.output_tokens for flight in flights] == driven.output_tokens.tolist()
    gaps = [float("nan") if flight.chunk_gap_max_s is None else flight.chunk_gap_max_s for flight in flights]
    assert np.array_equal(gaps, driven.gap_max_s, equal_nan=True)
    assert {flight.end for flight in flights} == {End.FINISHED}


def test_under_virtual_time_it_gives_the_times_of_the_driven_model() -> None:
    requests, flights = run_virtual(chat_on_a_fresh_engine(11.0, 30.0))
    assert len(flights) > 250
    assert [flight.sent_s for flight in flights] == pytest.approx([one.due_s for one in requests])
    assert_times_are_the_models(requests, flights)


def test_equal_runs_write_the_same_bytes() -> None:
    first, second = (run_virtual(chat_on_a_fresh_engine(9.0, 10.0))[1] for _ in range(2))
    assert repr([astuple(flight) for flight in first]).encode() == repr([astuple(flight) for flight in second]).encode()


class LateLoop(VirtualLoop):
    """Wakes up 4 ms late each time, as a busy machine does."""

    def jump(self, timeout: float | None) -> None:
        super().jump(timeout)
        if timeout:
            self._virtual_now_s += 0.004


def test_a_loop_that_wakes_up_late_delays_no_token_and_shifts_no_step() -> None:
    with asyncio.Runner(loop_factory=LateLoop) as runner:
        requests, flights = runner.run(chat_on_a_fresh_engine(11.0, 20.0, beside=3000))
    assert max(flight.sent_s or 0.0 for flight in flights[1:]) > requests[-1].due_s + 0.003
    assert_times_are_the_models(requests, flights)


def test_a_request_that_comes_before_the_loop_noticed_the_last_step_end_starts_at_once() -> None:
    async def run() -> tuple[Flight, Flight]:
        loop, first, second = asyncio.get_running_loop(), Flight(), Flight()
        assert isinstance(loop, VirtualLoop)
        async with SimulatedEngine(StepModel(SETTINGS, 0)) as engine:
            task = asyncio.create_task(engine.generate(request(0.0, 10, 1), first))
            await asyncio.sleep(0.01)
            loop._virtual_now_s = 1.0  # something else kept the thread busy until long after the step's end
            await engine.generate(request(1.0, 10, 1), second)
            await task
        return first, second

    first, second = run_virtual(run())
    assert first.ended_s is not None
    assert second.first_token_s is not None
    assert first.ended_s < 0.2
    assert second.sent_s == 1.0 < second.first_token_s < 1.2


def on_an_engine(test: Callable[[SimulatedEngine], Awaitable[None]], settings: EngineSettings = SETTINGS) -> None:
    async def run() -> None:
        async with SimulatedEngine(StepModel(settings, 0)) as engine:
            await test(engine)

    run_virtual(run())


def test_a_first_token_is_in_the_flight_as_soon_as_it_happened() -> None:
    async def test(engine: SimulatedEngine) -> None:
        flight = Flight()
        task = asyncio.create_task(engine.generate(request(0.0, 100, 500), flight))
        await asyncio.sleep(0.35)
        assert flight.first_token_s is not None
        assert flight.output_tokens == 1
        assert flight.prompt_tokens == 100
        assert flight.end is None
        await asyncio.sleep(1.0)
        assert 1 < flight.output_tokens < 500  # at most half a second old
        await task
        assert flight.output_tokens == 500

    on_an_engine(test)


def test_cancelling_aborts_at_once_and_leaves_the_exact_facts() -> None:
    async def test(engine: SimulatedEngine) -> None:
        told: list[float] = []
        flight, other = Flight(), Flight()
        tasks = [
            asyncio.create_task(engine.generate(request(0.0, 100, 500), flight, lambda now_s, _: told.append(now_s))),
            asyncio.create_task(engine.generate(request(0.0, 100, 20), other)),
        ]
        await asyncio.sleep(2.0)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert engine.model.running == engine.model.kv_tokens == 0
        assert other.end is End.FINISHED
        assert flight.end is None
        assert flight.output_tokens == len(told)
        assert (flight.first_token_s, flight.last_token_s) == (told[0], told[-1])
        assert flight.chunk_gap_max_s == max(np.diff(told))
        await engine.wait_idle()

    on_an_engine(test)


def test_cancelling_before_the_first_step_leaves_nothing_behind() -> None:
    async def test(engine: SimulatedEngine) -> None:
        flight = Flight()
        task = asyncio.create_task(engine.generate(request(0.0, 100, 5), flight))
        await asyncio.sleep(0)
        assert engine.model.waiting == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert engine.model.waiting == 0
        await engine.wait_idle()
        assert flight.first_token_s is None

    on_an_engine(test)


def listener(heard: list[tuple[float, int]]) -> TokenCallback:
    return lambda now_s, count: heard.append((now_s, count))


def test_a_listener_hears_of_every_token_at_its_time_preempted_or_not() -> None:
    async def test(engine: SimulatedEngine) -> None:
        heard: list[list[tuple[float, int]]] = [[] for _ in range(6)]
        flights = [Flight() for _ in heard]
        async with asyncio.TaskGroup() as group:
            for flight, each in zip(flights, heard, strict=True):
                group.create_task(engine.generate(request(0.0, 40, 60), flight, listener(each)))
        assert engine.model.preemptions_total > 0
        for flight, each in zip(flights, heard, strict=True):
            assert sum(count for _, count in each) == 60
            assert (each[0][0], each[-1][0]) == (flight.first_token_s, flight.last_token_s)

    on_an_engine(test, EngineSettings(kv_cache_tokens=400, max_model_len=100))


def test_steps_are_told_to_whoever_asked() -> None:
    outcomes: list[StepOutcome] = []

    async def run() -> None:
        async with SimulatedEngine(StepModel(SETTINGS, 0), outcomes.append) as engine:
            await engine.generate(request(0.0, 10, 4), Flight())

    run_virtual(run())
    assert [len(outcome.first) for outcome in outcomes] == [1, 0, 0, 0]
    assert [outcome.decoded for outcome in outcomes] == [0, 1, 1, 1]


def test_a_request_that_does_not_fit_fails_in_its_flight() -> None:
    async def test(engine: SimulatedEngine) -> None:
        flight = Flight()
        await engine.generate(request(0.0, SETTINGS.max_model_len, 1), flight)
        assert flight.end is End.FAILED
        assert "max_model_len" in flight.error
        assert engine.is_idle

    on_an_engine(test)


def test_the_engine_is_idle_exactly_when_nothing_is_under_way() -> None:
    async def test(engine: SimulatedEngine) -> None:
        seen = [engine.is_idle]
        task = asyncio.create_task(engine.generate(request(0.0, 10, 10), Flight()))
        await asyncio.sleep(0)
        seen.append(engine.is_idle)
        await engine.wait_idle()
        seen.append(engine.is_idle)
        assert seen == [True, False, True]
        await task
        await engine.generate(request(0.0, 10, 1), Flight())  # and it takes work again

    on_an_engine(test)


def test_leaving_ends_what_is_under_way_and_leaves_no_timer() -> None:
    async def run() -> None:
        engine, flight, late = SimulatedEngine(StepModel(SETTINGS, 0)), Flight(), Flight()
        async with engine:
            task = asyncio.create_task(engine.generate(request(0.0, 10, 5000), flight))
            await asyncio.sleep(1.0)
        await task
        assert flight.end is End.FAILED
        assert flight.error == "the engine was stopped"
        assert flight.output_tokens > 50
        await engine.generate(request(0.0, 10, 1), late)
        assert late.end is End.FAILED
        loop = asyncio.get_running_loop()
        assert not [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(run())


def test_it_answers_in_real_time_too() -> None:
    async def run() -> tuple[float, Flight]:
        loop, flight = asyncio.get_running_loop(), Flight()
        settings = EngineSettings(first_shape_cost_s=0.0)
        async with SimulatedEngine(StepModel(settings, 0)) as engine:
            before_s = loop.time()
            await engine.generate(request(0.0, 10, 5), flight)
            return loop.time() - before_s, flight

    took_s, flight = asyncio.run(run())
    assert flight.end is End.FINISHED
    assert flight.ended_s is not None
    assert flight.sent_s is not None
    assert 0.02 < flight.ended_s - flight.sent_s <= took_s + 1e-6
