"""The gate on a running engine: its budget, its verdict, its document; and what a sweep tells it of the load."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from engines import Scripted, ScriptedHost, loop_s, probe_facts, record, words

from gates.accuracy import AccuracyOutcome
from gates.gsm8k import Item, items_sha256
from reports.gates_document import GATES_NAME, GatesDocument
from reports.run_directory import to_json
from slo_bench.accuracy.after_sweep import first_answers, mean_in_flight
from slo_bench.accuracy.holding import GatePlan, budget, first_arm, hold, not_held, telling
from slo_bench.accuracy.items import ItemSet
from slo_bench.hosts import EngineFacts
from slo_bench.simulate.answers import KnownAnswers
from traffic.errors import EngineError, UsageError
from traffic.records import End, Flight, Request
from traffic.virtual_time import run_virtual

ITEMS = tuple(Item(index, f"What is {index} + 1?", Fraction(index + 1)) for index in range(20))
PLAN = GatePlan(ItemSet(ITEMS, "ours", items_sha256(ITEMS)))
FACTS = EngineFacts("attached", "m", None, None)
KNOWN = KnownAnswers({item.question: f"it is {item.gold}\n#### {item.gold}" for item in ITEMS})


def knowing(known: KnownAnswers) -> Scripted:
    """An engine that says known answers, right or wrong by the requests in flight."""

    async def act(request: Request, flight: Flight) -> None:
        text = known.answer(request, engine.open)
        await asyncio.sleep(1.0)
        flight.token(loop_s(), 9)
        assert flight.answer is not None
        flight.answer.append(text or "")
        flight.finish_reason = "stop"
        flight.finish(loop_s(), End.FINISHED)

    engine = Scripted(act)
    return engine


def host(known: KnownAnswers = KNOWN, **more: object) -> ScriptedHost:
    return ScriptedHost(knowing(known), **{"facts": FACTS} | more)  # type: ignore[arg-type]


def held(running: ScriptedHost, plan: GatePlan = PLAN, concurrency: int = 5, **more: object) -> GatesDocument:
    return run_virtual(hold(running, plan, label="arm", concurrency=concurrency, **more))  # type: ignore[arg-type]


def test_the_engine_rests_before_and_after() -> None:
    running = host()
    document = held(running, replace(PLAN, floor=0.9))
    assert (document.outcome, document.right, document.engine) == (AccuracyOutcome.PASS, 20, "attached")
    assert running.waits == [60.0, 60.0]


def test_one_that_is_wrong_in_a_crowd_fails_against_itself_alone() -> None:
    known = replace(KNOWN, wrong_above_in_flight=4)
    alone = held(host(known), concurrency=1)
    crowd = held(host(known), concurrency=30, first=alone.run())
    assert (alone.outcome, alone.right) == (AccuracyOutcome.UNJUDGED, 20)
    assert (crowd.outcome, crowd.right) == (AccuracyOutcome.FAIL, 4)
    assert crowd.comparison is not None
    assert len(crowd.comparison.lost) == 16


def test_a_long_gate_says_now_and_then_how_far_it_is() -> None:
    said: list[str] = []
    tell = telling(said.append)
    for done in range(1, 251):
        tell(done)
    assert said == ["accuracy gate: 100 items are answered", "accuracy gate: 200 items are answered"]


def test_an_engine_that_died_is_an_engine_error_and_no_verdict() -> None:
    with pytest.raises(EngineError, match="engine died"):
        held(host(death=EngineError("engine died")))


def test_a_plan_without_items_asks_nothing() -> None:
    running = host()
    document = held(running, GatePlan(None))
    assert (document.outcome, document.asked, running.waits) == (AccuracyOutcome.NOT_APPLICABLE, None, [])
    assert document == not_held("attached", GatePlan(None), label="arm")


def test_the_simulated_server_behind_a_port_is_not_asked() -> None:
    document = held(host(facts=replace(FACTS, model="simulated-moe")))
    assert document.reasons[0].startswith("not applicable: the simulated engine answers no questions")


@pytest.mark.parametrize(("context", "expected"), [(None, 4096), (100_000, 4096), (2048, 2048 - 300 - 16)])
def test_the_budget_is_what_the_longest_prompt_leaves(context: int | None, expected: int) -> None:
    running = host(facts=replace(FACTS, max_model_len=context), count=lambda _: 300)
    assert run_virtual(budget(running, PLAN)) == expected


def test_a_context_that_is_too_short_is_refused_also_where_nobody_counts_tokens() -> None:
    for count in (words, lambda _: None):
        running = host(facts=replace(FACTS, max_model_len=400), count=count)
        with pytest.raises(UsageError, match="GSM8K answers need at least 256 tokens"):
            run_virtual(budget(running, PLAN))


def test_the_first_arm_is_read_from_its_directory(tmp_path: Path) -> None:
    assert first_answers(tmp_path) is None
    with pytest.raises(UsageError, match=r"gates\.json does not exist"):
        first_arm(tmp_path)
    (tmp_path / GATES_NAME).write_text(to_json(not_held("vllm", GatePlan(None), label="arm")), encoding="utf-8")
    assert first_answers(tmp_path) is None
    with pytest.raises(UsageError, match="no answers to compare with"):
        first_arm(tmp_path)
    document = held(host())
    (tmp_path / GATES_NAME).write_text(to_json(document), encoding="utf-8")
    assert first_arm(tmp_path) == first_answers(tmp_path) == document.run()


def test_the_mean_in_flight_is_littles_law_over_the_window() -> None:
    """Ten requests a second that take 2 s each: 20 in flight, once the ramp is over."""
    records = [
        record(index, due_s=index * 0.1, sent_s=index * 0.1, ended_s=index * 0.1 + 2.0, in_cohort=index >= 50)
        for index in range(150)
    ]
    facts = probe_facts(records, window={"window_start_s": 5.0, "window_end_s": 15.0}, load_s=20.0)
    assert mean_in_flight(facts) == pytest.approx(20.0, rel=0.02)


def test_what_never_ended_is_in_flight_to_the_end_and_what_was_never_sent_is_not() -> None:
    records = [
        record(0, due_s=0.0, sent_s=0.0, ended_s=None, end=End.UNRESOLVED),
        record(1, due_s=0.0, sent_s=None, ended_s=None, end=End.UNFINISHED),
    ]
    facts = probe_facts(records, window={"window_start_s": 2.0, "window_end_s": 10.0}, load_s=6.0)
    assert mean_in_flight(facts) == pytest.approx(1.0)
    assert mean_in_flight(replace(facts, load_s=1.0)) is None
