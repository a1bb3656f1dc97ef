"""Looks at a server: each second, at absolute times, and never in the way of the load."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from engines import Scripted, answer, blocking, schedule

from slo_bench.scrape import Look, Scraper, pages, simulated_look
from slo_bench.simulate.metrics import ServerMetrics
from traffic.clock import running_clock
from traffic.errors import EngineError
from traffic.probe import run_probe
from traffic.records import Flight, Request
from traffic.server_facts import difference, sample
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel
from traffic.virtual_time import EPOCH_UTC_S, run_virtual

PAGE = 'vllm:num_requests_running{engine="0"} 4.0\nvllm:num_preemptions_total{engine="0"} 7.0\nother 1.0\n'


def scripted(*steps: str | Exception | float | None) -> Look:
    """Each look takes the next step: a page, no page, an error, or seconds before a page; the last one for ever."""
    left = list(steps)

    async def look() -> str | None:
        step = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, float):
            await asyncio.sleep(step)
            return PAGE
        return step

    return look


def watch(look: Look, for_s: float, then: Callable[[], Awaitable[None]] | None = None, **more: Any) -> Scraper:
    async def run() -> Scraper:
        async with Scraper(look, **more) as scraper:
            await asyncio.sleep(for_s)
            if then is not None:
                await then()
        return scraper

    return run_virtual(run())


def moments(scraper: Scraper) -> list[float]:
    return [each.moment_s for each in scraper.samples]


def reasons(scraper: Scraper) -> list[tuple[float, str]]:
    return [(gap.moment_s, gap.reason) for gap in scraper.gaps]


def test_a_look_each_second_from_the_start() -> None:
    scraper = watch(scripted(PAGE), 3.5)
    assert moments(scraper) == [0.0, 1.0, 2.0, 3.0]
    assert scraper.gaps == ()
    first = scraper.samples[0]
    assert (first.running, first.preemptions_total, first.utc_s) == (4, 7, EPOCH_UTC_S)
    assert [each.moment_s for each in scraper.between(1.0, 2.0)] == [1.0, 2.0]
    assert scraper.between(1.2, 1.8) == ()


def test_a_slow_look_moves_no_later_one_and_what_it_covers_is_a_gap() -> None:
    scraper = watch(scripted(PAGE, 2.25, PAGE), 5.5)
    assert moments(scraper) == [0.0, 3.25, 4.0, 5.0]
    assert [moment_s for moment_s, _ in reasons(scraper)] == [2.0, 3.0]
    assert "still under way" in reasons(scraper)[0][1]


def test_a_look_is_bounded() -> None:
    scraper = watch(scripted(PAGE, 60.0, PAGE), 4.5, limit_s=0.5)
    assert moments(scraper) == [0.0, 2.0, 3.0, 4.0]
    assert reasons(scraper) == [(1.0, "no answer within 0.5 s")]


def test_whatever_goes_wrong_is_a_gap_with_its_reason() -> None:
    steps = (EngineError("http://x: refused"), None, KeyError("le"), PAGE)
    scraper = watch(scripted(*steps), 4.5)
    assert moments(scraper) == [3.0, 4.0]
    assert reasons(scraper) == [
        (0.0, "http://x: refused"),
        (1.0, "the server has no such page"),
        (2.0, "KeyError: 'le'"),
    ]
    assert scraper.gaps[1].utc_s == EPOCH_UTC_S + 1.0


def test_a_client_that_stands_still_is_a_gap_too() -> None:
    async def stand() -> None:
        request, flight = Request(0, 0.0, "k", 1, 1), Flight()
        await blocking(2.2, answer(ttft_s=0.1))(request, flight)

    scraper = watch(scripted(PAGE), 1.5, stand)
    assert moments(scraper) == [0.0, 1.0, pytest.approx(3.7)]
    assert [moment_s for moment_s, _ in reasons(scraper)] == [3.0]


def test_no_look_delays_a_request() -> None:
    async def run() -> list[float]:
        async with Scraper(scripted(60.0), limit_s=3.0):
            facts = await run_probe(Scripted(answer()), schedule([0.5 * n for n in range(20)]))
        return [each.send_lag_s or 0.0 for each in facts.records]

    assert max(run_virtual(run())) == pytest.approx(0.0, abs=1e-6)


def test_a_look_that_does_not_let_go_holds_nobody_for_ever_and_is_the_last() -> None:
    async def stubborn() -> str | None:
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60.0)
        return PAGE

    async def run() -> tuple[float, int]:
        async with Scraper(stubborn, limit_s=2.0):
            await asyncio.sleep(0.5)
        return running_clock().now_s(), len(asyncio.all_tasks())

    assert run_virtual(run()) == (2.0, 1)


def test_leaving_in_the_middle_of_a_look_ends_it_at_once() -> None:
    async def run() -> tuple[float, int]:
        async with Scraper(scripted(60.0)):
            await asyncio.sleep(0.5)
        return running_clock().now_s(), len(asyncio.all_tasks())

    assert run_virtual(run()) == (0.5, 1)


def test_replicas_are_one_server_and_a_missing_one_is_a_gap() -> None:
    async def page() -> str | None:
        return PAGE

    async def none() -> str | None:
        return None

    both = watch(pages([page, page]), 0.5)
    assert (both.samples[0].running, both.samples[0].running_max, both.samples[0].preemptions_total) == (8, 4, 14)
    assert reasons(watch(pages([page, none]), 0.5)) == [(0.0, "the server has no such page")]


def test_the_simulated_engine_is_seen_as_its_page_shows_it_without_the_page() -> None:
    async def run() -> tuple[Scraper, ServerMetrics]:
        model = StepModel(EngineSettings(), 0)
        metrics = ServerMetrics(model, "m")
        async with SimulatedEngine(model, metrics.step) as engine, Scraper(simulated_look(metrics)) as scraper:
            requests = [Request(index, 0.0, "k", 300, 50) for index in range(20)]
            await asyncio.gather(*(engine.generate(request, Flight()) for request in requests))
            await asyncio.sleep(1.0)
        return scraper, metrics

    scraper, metrics = run_virtual(run())
    first, last = scraper.samples[0], scraper.samples[-1]
    assert last == sample(metrics.exposition().decode(), moment_s=last.moment_s, utc_s=last.utc_s)
    change = difference(first, last)
    assert (change.prompt_tokens, change.generation_tokens) == (6000, 1000)
    assert change.ttft_s is not None
    assert change.ttft_s.count == 20
    assert (last.running, last.waiting, last.kv_use_share) == (0, 0, 0.0)
    assert (last.queue_s, last.prefill_s) == (None, None)
