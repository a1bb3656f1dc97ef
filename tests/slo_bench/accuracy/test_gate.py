"""Asking the items: so many at a time, greedily, again after a failure, until a deadline; nothing is dropped."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from engines import Act, Scripted, broken, fail, loop_s, silent, stubborn
from fake_server import DONE, Received, Script, answer, finish, reply, token
from flights import against
from memory_server import MemoryServer

from gates.accuracy import AccuracyOutcome, AccuracyRun, judge_accuracy, score
from gates.answers import FoundBy, Grade
from gates.gsm8k import Item, items_sha256, messages
from slo_bench.accuracy.gate import ATTEMPTS, run_gsm8k
from slo_bench.accuracy.items import ItemSet
from traffic.endpoint import Endpoint
from traffic.errors import EngineError
from traffic.http_engine import HttpEngine
from traffic.records import End, Flight, Request
from traffic.virtual_time import run_virtual

BUDGET = 512
ITEMS = tuple(Item(index, f"What is {index} + 1?", Fraction(index + 1)) for index in range(12))
ITEM_SET = ItemSet(ITEMS, "ours", items_sha256(ITEMS))


def say(text: Callable[[int], str], tokens: int = 40, after_s: float = 1.0, reason: str | None = "stop") -> Act:
    """Answer with a text that depends on the item; reason: why it ended, by the server."""

    async def act(request: Request, flight: Flight) -> None:
        await asyncio.sleep(after_s)
        assert flight.answer is not None
        flight.answer += [text(request.index)[:3], text(request.index)[3:]]
        flight.token(loop_s(), tokens)
        flight.finish_reason = reason
        flight.finish(loop_s(), End.FINISHED)

    return act


def right(index: int) -> str:
    return f"{index} + 1 = {index + 1}\n#### {index + 1}"


def wrong(index: int) -> str:
    return f"#### {index + 2}"


def in_order(*acts: Act) -> Act:
    """The first act for the first attempt, and so on; the last one from then on."""
    left = itertools.chain(acts, itertools.repeat(acts[-1]))

    async def act(request: Request, flight: Flight) -> None:
        await next(left)(request, flight)

    return act


def ask(
    engine: Scripted,
    *,
    concurrency: int = 4,
    deadline_s: float = 600.0,
    observe: Callable[[int], None] = lambda _: None,
) -> AccuracyRun:
    return run_virtual(
        run_gsm8k(
            engine,
            ITEM_SET,
            label="one",
            concurrency=concurrency,
            token_budget=BUDGET,
            deadline_s=deadline_s,
            observe=observe,
        )
    )


def grades(run: AccuracyRun) -> dict[int, Grade | None]:
    """What is not right."""
    return {each.index: each.grade for each in run.results if each.grade is not Grade.RIGHT}


def test_every_item_is_asked_once_and_graded() -> None:
    engine = Scripted(say(right), {3: say(wrong), 7: say(lambda _: "I cannot say")})
    run = ask(engine)
    assert grades(run) == {3: Grade.WRONG, 7: Grade.NO_ANSWER}
    assert [each.index for each in run.results] == list(range(12))
    assert (run.items_sha256, run.items_source, run.token_budget, run.concurrency) == (ITEM_SET.sha256, "ours", 512, 4)
    first = run.results[0]
    assert (first.number, first.found_by, first.finish_reason) == (Fraction(1), FoundBy.HASHES, "stop")
    assert (first.output_tokens, first.attempts, first.tail) == (40, 1, "0 + 1 = 1\n#### 1")


def test_half_a_character_of_a_server_does_not_spoil_the_record() -> None:
    run = ask(Scripted(say(right), {0: say(lambda _: "\ud83d #### 1"), 1: fail(0.0, "HTTP 500: \udc00")}))
    assert (run.results[0].grade, run.results[0].tail) == (Grade.RIGHT, "? #### 1")
    assert run.results[1].error == "HTTP 500: ?"


def test_a_request_asks_for_the_prompt_and_the_budget_and_forces_no_length() -> None:
    engine = Scripted(say(right))
    ask(engine)
    request = engine.received[5]
    assert request.messages == messages(ITEMS[request.index].question)
    assert (request.output_tokens, request.force_length, request.kind) == (BUDGET, False, "gsm8k")


@pytest.mark.parametrize("concurrency", [1, 5, 40])
def test_as_many_requests_as_asked_are_in_flight(concurrency: int) -> None:
    engine = Scripted(say(right))
    done: list[int] = []
    ask(engine, concurrency=concurrency, observe=done.append)
    assert engine.most_open == concurrency
    assert done == list(range(1, 13))


def test_a_failed_request_is_sent_again_after_a_pause_and_counted() -> None:
    sent_s: list[float] = []
    acts = in_order(fail(1.0), fail(1.0, end=End.TRUNCATED), say(right))

    async def noted(request: Request, flight: Flight) -> None:
        sent_s.append(loop_s())
        await acts(request, flight)

    run = ask(Scripted(say(right), {2: noted}), concurrency=1)
    assert (grades(run), run.results[2].attempts) == ({}, ATTEMPTS)
    assert score(run.results).retries == 2
    assert sent_s == [2.0, 5.0, 10.0]


def test_r24_what_fails_to_the_last_attempt_is_an_error_and_no_verdict_follows() -> None:
    run = ask(Scripted(say(right), {2: fail(1.0), 9: fail(0.0, "", End.TIMED_OUT)}))
    assert grades(run) == {2: None, 9: None}
    assert [run.results[index].error for index in (2, 9)] == ["HTTP 500: out of memory", "timed out"]
    assert [run.results[index].attempts for index in (2, 9)] == [ATTEMPTS, ATTEMPTS]
    assert judge_accuracy(run, floor=0.1).outcome is AccuracyOutcome.INCONCLUSIVE


@pytest.mark.parametrize(("tokens", "reason"), [(BUDGET, "length"), (300, "length"), (BUDGET, None)])
def test_r23_an_answer_is_cut_where_the_server_says_so_or_used_up_the_budget_in_silence(
    tokens: int, reason: str | None
) -> None:
    cut: Mapping[int, Act] = {
        0: say(lambda _: "<think>5 * 4 = 20, wait, that is not", tokens, reason=reason),
        1: say(lambda _: "", tokens, reason=reason),
        2: say(lambda index: f"so it is {index + 1}", tokens, reason=reason),
        3: say(lambda index: f"#### {index + 1}\n\nQuestion: What is 5 + 7?\n#### 12", tokens, reason=reason),
    }
    run = ask(Scripted(say(right), cut))
    assert grades(run) == dict.fromkeys(range(3), Grade.NO_ANSWER)
    assert [each.is_cut_off for each in run.results[:5]] == [True, True, True, False, False]
    assert [each.finish_reason for each in run.results[2:5]] == [reason, reason, "stop"]
    verdict = judge_accuracy(run, floor=0.1)
    assert verdict.reasons == ("token budget too small: 3 of 12 answers were cut at 512 tokens",)


def test_an_answer_that_stopped_at_the_very_budget_is_whole() -> None:
    run = ask(Scripted(say(lambda index: f"it is {index + 1}", BUDGET, reason="stop")))
    assert grades(run) == {}
    assert not any(each.is_cut_off for each in run.results)


def test_company_is_in_flight_to_the_last_item_and_counts_for_nothing() -> None:
    seen: list[int] = []

    async def slow(request: Request, flight: Flight) -> None:
        for _ in range(9):
            await asyncio.sleep(3.3)
            seen.append(engine.open)
        await say(right)(request, flight)

    engine = Scripted(say(right), {11: slow})
    run = ask(engine, concurrency=20)
    assert [each.index for each in run.results] == list(range(12))
    assert all(each.attempts == 1 for each in run.results)
    assert set(seen) == {20}
    assert engine.open == 0


def test_company_that_is_refused_waits_before_it_asks_again() -> None:
    refused = 0

    async def act(request: Request, flight: Flight) -> None:
        nonlocal refused
        if engine.open > 12:
            refused += 1
            await fail()(request, flight)
        else:
            await say(right, after_s=9.0)(request, flight)

    engine = Scripted(act)
    assert grades(ask(engine, concurrency=13)) == {}
    assert refused == 5


def test_the_deadline_ends_it_and_what_is_open_is_an_error() -> None:
    engine = Scripted(say(right, after_s=10.0), {1: silent(tokens=3)})
    run = ask(engine, concurrency=2, deadline_s=35.0)
    assert list(grades(run)) == [1, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [run.results[index].attempts for index in (0, 1, 4, 5)] == [1, 1, 1, 0]
    assert {run.results[index].error for index in grades(run)} == {"no answer within the gate's 35 s"}
    assert engine.open == 0


def test_a_fault_of_the_program_ends_it_at_once() -> None:
    engine = Scripted(say(right, after_s=10.0), {1: broken(RuntimeError("a fault"))})
    with pytest.raises(RuntimeError, match="a fault"):
        ask(engine)
    assert (len(engine.received), engine.open) == (4, 0)


def test_an_engine_that_does_not_let_go_is_told() -> None:
    with pytest.raises(EngineError, match="2 cancelled requests did not end within 10 s"):
        ask(Scripted(say(right), {0: stubborn(60.0), 1: stubborn(60.0)}), concurrency=2, deadline_s=20.0)


def test_whoever_cancels_the_gate_leaves_no_request_behind() -> None:
    engine = Scripted(say(right, after_s=10.0))

    async def cancelled() -> None:
        async with asyncio.timeout(5.0):
            await run_gsm8k(engine, ITEM_SET, label="one", concurrency=3, token_budget=BUDGET, deadline_s=600.0)

    with pytest.raises(TimeoutError):
        run_virtual(cancelled())
    assert (len(engine.received), engine.open) == (3, 0)


def test_an_engine_that_is_wrong_only_under_concurrency_fails_against_itself_alone() -> None:
    engine = Scripted(say(right))

    async def crowded(request: Request, flight: Flight) -> None:
        is_alone = engine.open == 1
        await say(right if is_alone else wrong)(request, flight)

    engine.act = crowded
    alone, together = ask(engine, concurrency=1), ask(engine, concurrency=6)
    assert grades(alone) == {}
    verdict = judge_accuracy(together, first=alone)
    assert verdict.outcome is AccuracyOutcome.FAIL
    assert verdict.comparison is not None
    assert len(verdict.comparison.lost) >= 10


def test_r23_and_r24_over_http() -> None:
    """Item 0 is only thought about until the budget is used up, 1 is refused for good, 2 once, the others answered."""
    refused: list[str] = []

    def handle(request: Received) -> Script:
        question = request.json["messages"][-1]["content"].splitlines()[-1]
        index = int(question.split()[2])
        if index == 1 or (index == 2 and question not in refused):
            refused.append(question)
            return reply(500, {"error": {"message": "out of memory"}})
        if index == 0:
            return answer(
                token(None, reasoning="so it is 1\n#### 1", usage=BUDGET), finish("length", usage=BUDGET), DONE
            )
        return answer(token(right(index), usage=9), finish(usage=9), DONE)

    runs: list[AccuracyRun] = []

    async def use(_: MemoryServer, endpoint: Endpoint) -> None:
        engine = HttpEngine(endpoint, "m")
        runs.append(await run_gsm8k(engine, ITEM_SET, label="one", concurrency=4, token_budget=BUDGET, deadline_s=60.0))

    server = against(handle, use)
    assert grades(runs[0]) == {0: Grade.NO_ANSWER, 1: None}
    assert runs[0].results[0].is_cut_off
    assert runs[0].results[1].error == "HTTP 500: out of memory"
    assert runs[0].results[2].attempts == 2
    body = server.received[0].json
    assert (body["temperature"], body["max_tokens"]) == (0, BUDGET)
    assert not {"min_tokens", "ignore_eos", "stop"} & body.keys()
