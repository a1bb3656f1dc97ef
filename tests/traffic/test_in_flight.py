"""Requests under way: nobody is lost, everybody has a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from engines import Scripted, answer, broken, broken_when_cancelled, fail, requests, silent, stubborn

from traffic.errors import EngineError
from traffic.in_flight import CANCEL_LIMIT_S, InFlight
from traffic.records import End, Flight, Request, RequestRecord
from traffic.virtual_time import run_virtual

FIVE = requests([0.0] * 5)


def flown(
    engine: Scripted, act: Callable[[InFlight], Coroutine[Any, Any, None]], *, origin_s: float = 0.0
) -> list[RequestRecord]:
    """Send five requests at once, do something, and return the records in the order in which they came."""

    async def main() -> list[RequestRecord]:
        told: list[RequestRecord] = []
        air = InFlight(engine, origin_s, told.append)
        for request in FIVE:
            air.send(request)
        await act(air)
        assert told == air.records
        return told

    return run_virtual(main())


async def wait(_: InFlight) -> None:
    await asyncio.sleep(1.0)


def test_each_request_that_ended_has_one_record_with_its_facts() -> None:
    told = flown(Scripted(answer(0.1, 0.01), {3: fail(0.05)}), wait)
    assert told[0].index == 3
    assert {each.index for each in told} == {0, 1, 2, 3, 4}
    assert told[0].error == "HTTP 500: out of memory"
    assert [each.end for each in told] == [End.FAILED, *[End.FINISHED] * 4]
    assert told[1].first_token_s == pytest.approx(0.1)


def test_times_are_told_after_the_origin() -> None:
    assert flown(Scripted(answer(0.5)), wait, origin_s=0.2)[0].first_token_s == pytest.approx(0.3)


def test_the_requests_under_way_are_counted() -> None:
    async def look(air: InFlight) -> None:
        assert len(air) == 5
        await asyncio.sleep(0.2)
        assert len(air) == 1

    flown(Scripted(answer(), {2: silent()}), look)


def test_an_engine_that_returns_without_a_word_has_failed_the_request() -> None:
    async def nothing(_: Request, __: Flight) -> None:
        return

    assert {each.end for each in flown(Scripted(nothing), wait)} == {End.FAILED}


def test_what_an_engine_raises_is_kept_and_raised_at_the_next_look() -> None:
    async def look(air: InFlight) -> None:
        air.check()
        await asyncio.sleep(1.0)
        with pytest.raises(ZeroDivisionError, match="a fault"):
            air.check()

    told = flown(Scripted(answer(), {1: broken(ZeroDivisionError("a fault"))}), look)
    assert len(told) == 5


def test_what_an_engine_raises_on_being_cancelled_is_raised_too() -> None:
    async def stop(air: InFlight) -> None:
        await asyncio.sleep(0.5)
        with pytest.raises(ZeroDivisionError, match="a fault"):
            await air.stop_all(lambda _: End.UNRESOLVED)

    flown(Scripted(answer(), {1: broken_when_cancelled(ZeroDivisionError("a fault"))}), stop)


def test_stopping_cancels_what_is_under_way_and_names_its_end_by_request() -> None:
    async def stop(air: InFlight) -> None:
        await asyncio.sleep(0.5)
        await air.stop_all(lambda request: End.UNFINISHED if request.index < 2 else End.UNRESOLVED)
        assert len(air) == 0

    engine = Scripted(silent(tokens=2), {4: answer()})
    told = flown(engine, stop)
    assert {each.index: each.end for each in told} == {
        0: End.UNFINISHED,
        1: End.UNFINISHED,
        2: End.UNRESOLVED,
        3: End.UNRESOLVED,
        4: End.FINISHED,
    }
    assert engine.open == 0


def test_a_cancelled_request_keeps_what_had_happened() -> None:
    async def stop(air: InFlight) -> None:
        await asyncio.sleep(0.5)
        await air.stop_all(lambda _: End.UNFINISHED)

    cut = flown(Scripted(silent(tokens=3, every_s=0.1)), stop)[0]
    assert (cut.first_token_s, cut.last_token_s, cut.output_tokens) == (pytest.approx(0.1), pytest.approx(0.3), 3)
    assert cut.ended_s is None


def test_stopping_what_has_ended_adds_nothing() -> None:
    async def stop(air: InFlight) -> None:
        await asyncio.sleep(1.0)
        await air.stop_all(lambda _: End.UNFINISHED)
        await air.stop_all(lambda _: End.UNFINISHED)

    assert len(flown(Scripted(answer()), stop)) == 5


def test_an_engine_that_does_not_let_go_is_broken() -> None:
    async def stop(air: InFlight) -> None:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(EngineError, match="2 cancelled requests did not end within 10 s"):
            await air.stop_all(lambda _: End.UNRESOLVED)
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(CANCEL_LIMIT_S)

    async def stop_later(air: InFlight) -> None:
        await asyncio.sleep(0.5)
        await stop(air)

    flown(Scripted(answer(), {0: stubborn(60.0), 3: stubborn(60.0)}), stop_later)


def test_an_engine_that_lets_go_in_time_is_waited_for() -> None:
    async def stop(air: InFlight) -> None:
        await asyncio.sleep(0.5)
        await air.stop_all(lambda _: End.UNRESOLVED)

    assert len(flown(Scripted(stubborn(5.0)), stop)) == 5
