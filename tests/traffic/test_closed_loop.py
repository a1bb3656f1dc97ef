"""A closed loop: N in flight, times from the send, and an end that holds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from engines import Scripted, answer, broken, fail, loop_s, requests, silent

from traffic.closed_loop import run_closed
from traffic.errors import EngineError
from traffic.probe import TICK_S, ProbeFacts, Stop
from traffic.records import End, Request
from traffic.schedule import Window
from traffic.virtual_time import run_virtual

TEMPLATE = requests([0.0])[0]


def window(concurrency: int = 3) -> Window:
    """Measured from 2 to 10 s, the drain ends at 15 s."""
    return Window(None, 0, 2.0, 10.0, 15.0, 0, 3, concurrency=concurrency)


def make(index: int) -> Request:
    return Request(index, 0.0, TEMPLATE.kind, TEMPLATE.input_tokens, TEMPLATE.output_tokens)


async def alone(work: Coroutine[Any, Any, ProbeFacts]) -> ProbeFacts:
    """Await the work and see that no task is left, whether it returns or raises."""
    try:
        return await work
    finally:
        await asyncio.sleep(0)  # a cancelled task needs one turn to end
        assert asyncio.all_tasks() == {asyncio.current_task()}


def closed(engine: Scripted, concurrency: int = 3, **more: Any) -> ProbeFacts:
    return run_virtual(alone(run_closed(engine, make, window(concurrency), **more)))


def test_exactly_n_requests_are_in_flight_all_the_time() -> None:
    engine = Scripted(answer(0.3), {7: answer(2.0)})
    seen: list[int] = []
    closed(engine, 4, observe=lambda progress: seen.append(progress.in_flight))
    assert engine.most_open == 4
    assert set(seen) == {4}


def test_a_faster_server_is_asked_more() -> None:
    slow, fast = Scripted(answer(1.0)), Scripted(answer(0.25))
    closed(slow)
    closed(fast)
    assert len(fast.received) > 3 * len(slow.received)


def test_times_count_from_the_send() -> None:
    facts = closed(Scripted(answer(0.3)))
    assert all(each.due_s == each.sent_s for each in facts.records)
    finished = [each for each in facts.records if each.end is End.FINISHED]
    assert {round(each.ttft_s or 0.0, 6) for each in finished} == {0.3}


def test_the_cohort_is_what_was_sent_in_the_window_and_is_counted() -> None:
    facts = closed(Scripted(answer(0.3)))
    cohort = [each for each in facts.records if each.in_cohort]
    assert cohort == [each for each in facts.records if 2.0 <= each.due_s < 10.0]
    assert facts.window.scheduled == len(cohort) > 50
    assert facts.window.rate_rps is None


def test_load_goes_on_until_the_last_of_the_cohort_has_ended() -> None:
    engine = Scripted(answer(0.5), {20: answer(9.0)})
    facts = closed(engine)
    slowest = facts.records[20]
    assert slowest.in_cohort
    assert slowest.ended_s is not None
    assert facts.stop is Stop.COMPLETE
    assert slowest.ended_s <= facts.load_s <= slowest.ended_s + TICK_S
    assert sum(each.due_s > 10.0 for each in facts.records) > 3
    assert {each.end for each in facts.records if each.in_cohort} == {End.FINISHED}


def test_the_deadline_holds_with_an_engine_that_never_answers() -> None:
    facts = closed(Scripted(answer(0.5), {20: silent(tokens=2)}))
    assert facts.stop is Stop.DRAIN_LIMIT
    assert 15.0 <= facts.load_s <= 15.0 + TICK_S
    assert facts.records[20].end is End.UNFINISHED
    assert facts.records[20].output_tokens == 2
    cut = [each for each in facts.records if each.end is End.UNRESOLVED]
    assert not any(each.in_cohort for each in cut)


def test_a_server_that_refuses_at_once_does_not_spin_the_client() -> None:
    async def refuse(_: Request, flight: Any) -> None:
        if len(engine.received) > 20_000:
            await asyncio.sleep(1.0)  # so that the test ends
        flight.finish(loop_s(), End.FAILED, "connection refused")

    engine = Scripted(refuse)
    facts = closed(engine)
    assert facts.load_s <= 15.0 + TICK_S
    assert len(engine.received) <= 20_000


def test_failures_are_records_like_any_other() -> None:
    facts = closed(Scripted(fail(0.2)))
    assert {each.error for each in facts.records if each.end is End.FAILED} == {"HTTP 500: out of memory"}


def test_a_programming_error_of_the_engine_surfaces() -> None:
    engine = Scripted(answer(0.4), {5: broken(ZeroDivisionError("a fault"))})
    with pytest.raises(ZeroDivisionError, match="a fault"):
        closed(engine)
    assert engine.open == 0


def test_an_error_in_making_a_request_surfaces() -> None:
    def spoiled(index: int) -> Request:
        if index == 5:
            raise ZeroDivisionError("no request")
        return make(index)

    engine = Scripted(answer(0.4))
    with pytest.raises(ZeroDivisionError, match="no request"):
        run_virtual(alone(run_closed(engine, spoiled, window())))
    assert engine.open == 0


def test_a_dead_engine_ends_the_loop_with_its_cause() -> None:
    def check() -> None:
        if loop_s() > 3.0:
            raise EngineError("the server exited with 137")

    engine = Scripted(silent())
    with pytest.raises(EngineError, match="exited with 137"):
        closed(engine, check=check)
    assert engine.open == 0


def test_a_loop_that_is_cancelled_leaves_nothing_behind() -> None:
    engine = Scripted(answer(0.4))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4.1):
                await alone(run_closed(engine, make, window()))

    run_virtual(main())
    assert engine.open == 0
