import asyncio
import dataclasses

import pytest

from slo_bench.hosts import Host
from slo_bench.hosts.simulated import RunningSimulation, SimulatedHost
from traffic.errors import EngineError
from traffic.records import End, Flight, Message, Request
from traffic.step_model import EngineSettings
from traffic.virtual_time import run_virtual

SETTINGS = EngineSettings(max_model_len=4096)
REQUEST = Request(index=0, due_s=0.0, kind="test", input_tokens=100, output_tokens=100)


def test_its_facts_say_simulated_and_hold_the_settings() -> None:
    async def run() -> None:
        host: Host = SimulatedHost(SETTINGS, seed=3, start=2)
        async with host as running:
            assert running.facts.is_simulated
            assert running.facts.model == "simulated-moe"
            assert running.facts.max_model_len == 4096
            assert running.facts.start == 2
            assert running.facts.takes_forced_length
            assert running.facts.details == dataclasses.asdict(SETTINGS)
            assert not running.needs_text
            assert await running.count_tokens([Message("user", "one two")]) is None
            running.check()

    run_virtual(run())


def test_a_request_was_answered_before_it_is_handed_over() -> None:
    async def run() -> None:
        async with SimulatedHost(SETTINGS) as running:
            assert isinstance(running, RunningSimulation)
            assert running.engine.model.generation_tokens_total == 1
            assert running.engine.is_idle

    run_virtual(run())


def test_the_same_seed_and_start_give_the_same_server_and_another_start_does_not() -> None:
    async def ended_s(start: int) -> float | None:
        flight = Flight()
        async with SimulatedHost(SETTINGS, seed=1, start=start) as running:
            await running.engine.generate(REQUEST, flight)
        return flight.ended_s

    assert run_virtual(ended_s(0)) == run_virtual(ended_s(0)) != run_virtual(ended_s(1))


def test_drift_is_shared_by_the_starts_of_one_loop() -> None:
    settings = EngineSettings(step_noise_share=0.0, wander_share=0.0, first_shape_cost_s=0.0, drift_share_per_hour=0.1)

    async def run() -> tuple[float, float]:
        took_s: list[float] = []
        for start in range(2):
            await asyncio.sleep(3600.0 * start)
            async with SimulatedHost(settings, start=start) as running:
                flight = Flight()
                await running.engine.generate(REQUEST, flight)
                assert flight.ended_s is not None
                assert flight.sent_s is not None
                took_s.append(flight.ended_s - flight.sent_s)
        return took_s[0], took_s[1]

    early_s, late_s = run_virtual(run())
    assert late_s == pytest.approx(1.1 * early_s, rel=1e-3)


def test_waiting_for_idleness_is_bounded_and_says_what_is_in_the_way() -> None:
    async def run() -> None:
        async with SimulatedHost(SETTINGS) as running:
            task = asyncio.create_task(running.engine.generate(REQUEST, Flight()))
            await asyncio.sleep(0.1)
            with pytest.raises(EngineError, match=r"not idle after 0.2 s: 1 running, 0 waiting"):
                await running.wait_idle(0.2)
            await running.wait_idle(60.0)
            assert task.done()

    run_virtual(run())


def test_leaving_stops_it_on_an_error_too() -> None:
    flight, tasks = Flight(), list[asyncio.Task[None]]()

    async def run() -> None:
        async with SimulatedHost(SETTINGS) as running:
            tasks.append(asyncio.create_task(running.engine.generate(REQUEST, flight)))
            await asyncio.sleep(0.3)
            raise EngineError("elsewhere")

    with pytest.raises(EngineError, match="elsewhere"):
        run_virtual(run())
    assert flight.end is End.FAILED
