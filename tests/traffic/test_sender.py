"""Conversations under load: later turns wait for answers, and nothing is measured that was not due in the window."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from engines import Act, Scripted, answer, blocking, fail, loop_s, schedule, silent

from traffic.arrivals import POISSON
from traffic.conversations import Conversations
from traffic.probe import ProbeFacts, Stop, run_probe
from traffic.records import End, Flight, Message, Request, RequestRecord
from traffic.schedule import Draw, Schedule, open_loop
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel
from traffic.virtual_time import run_virtual

ANSWER_S = 0.12
"""What `answer()` takes for three tokens."""


def talks(*talks: tuple[float, ...], start_s: float = 0.0, with_text: bool = False) -> Schedule:
    """Conversations, each as the due time of its first turn and the think time before each later one.

    The window is start_s to 10 s, the drain ends at 15 s. Turns come in the order of their earliest due times.
    """
    turns = []
    for talk, (first_s, *think_s) in enumerate(talks):
        due_s = first_s
        turns.append((due_s, talk, 0, 0.0))
        for turn, pause_s in enumerate(think_s, start=1):
            due_s += pause_s
            turns.append((due_s, talk, turn, pause_s))
    turns.sort()
    index = {(talk, turn): at for at, (_, talk, turn, _) in enumerate(turns)}
    made = tuple(
        Request(
            index=at,
            due_s=due_s,
            kind="turn",
            input_tokens=10,
            output_tokens=3,
            in_cohort=start_s <= due_s < 10.0,
            messages=(Message("user", f"{talk}.{turn}"),) if with_text else (),
            after=index[talk, turn - 1] if turn else None,
            think_s=pause_s,
        )
        for at, (due_s, talk, turn, pause_s) in enumerate(turns)
    )
    window = replace(schedule([], start_s=start_s).window, scheduled=sum(each.in_cohort for each in made))
    return Schedule(window, made)


async def alone(engine: Scripted, plan: Schedule, **more: Any) -> ProbeFacts:
    try:
        return await run_probe(engine, plan, **more)
    finally:
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert engine.open == 0


def probe(plan: Schedule, act: Act, other: dict[int, Act] | None = None, **more: Any) -> tuple[ProbeFacts, Scripted]:
    engine = Scripted(act, other)
    return run_virtual(alone(engine, plan, **more)), engine


def saying(text: str) -> Act:
    """Answer in so many words, as an engine does for a flight that asks for them."""

    async def act(request: Request, flight: Flight) -> None:
        await answer()(request, flight)
        if flight.answer is not None:
            flight.answer.extend([text, f" to {request.messages[-1].text}"])

    return act


def test_a_later_turn_is_sent_when_the_user_has_thought_about_the_answer() -> None:
    facts, _ = probe(talks((1.0, 2.0, 0.5)), answer())
    due_s = [1.0, 1.0 + ANSWER_S + 2.0, 1.0 + 2 * ANSWER_S + 2.5]
    assert [each.due_s for each in facts.records] == pytest.approx(due_s)
    assert [each.sent_s for each in facts.records] == pytest.approx(due_s)
    assert [each.ttft_s for each in facts.records] == pytest.approx([0.1] * 3)
    assert facts.abandoned_turns == 0


def test_a_slower_server_is_asked_later_turns_later() -> None:
    facts, _ = probe(talks((1.0, 2.0)), answer(ttft_s=3.0))
    assert facts.records[1].due_s == pytest.approx(1.0 + 3.02 + 2.0)


def test_a_later_turn_brings_the_answers_along_in_the_servers_own_words() -> None:
    _, engine = probe(talks((1.0, 0.5, 0.5), (1.2, 0.5), with_text=True), saying("yes"))
    said = {tuple(each.text for each in request.messages) for request in engine.received}
    assert said == {
        ("0.0",),
        ("1.0",),
        ("0.0", "yes to 0.0", "0.1"),
        ("1.0", "yes to 1.0", "1.1"),
        ("0.0", "yes to 0.0", "0.1", "yes to 0.1", "0.2"),
    }
    roles = [[each.role for each in request.messages] for request in engine.received]
    assert max(roles, key=len) == ["user", "assistant", "user", "assistant", "user"]


def test_answers_are_kept_only_where_a_turn_will_repeat_them() -> None:
    kept: dict[int, bool] = {}

    async def act(request: Request, flight: Flight) -> None:
        kept[request.index] = flight.answer is not None
        await answer()(request, flight)

    probe(talks((1.0, 2.0), (1.5,)), act)
    assert kept == {0: True, 1: False, 2: False}


def test_a_late_client_is_charged_for_a_later_turn_too() -> None:
    facts, _ = probe(talks((1.0, 2.0), (3.05,)), answer(), {2: blocking(0.4, answer())})
    later = facts.records[1]
    assert later.due_s == pytest.approx(3.0 + ANSWER_S)
    assert later.sent_s == pytest.approx(3.45)
    assert later.ttft_s == pytest.approx(3.45 + 0.1 - later.due_s)


def test_the_cohort_is_what_came_to_be_due_in_the_window() -> None:
    # The third turn is due at 9.9 s at the earliest, and later in truth; the second conversation began in the ramp.
    facts, _ = probe(talks((1.9, 4.0, 4.0), (0.5, 2.0), start_s=2.0), answer())
    inside = [each for each in facts.records if each.in_cohort]
    assert [each.due_s for each in inside] == pytest.approx([2.5 + ANSWER_S, 5.9 + ANSWER_S])
    assert facts.window.scheduled == len(inside)


def test_the_load_does_not_end_while_a_turn_of_the_window_is_to_come() -> None:
    facts, _ = probe(talks((0.0, 9.5)), answer(), {1: answer(ttft_s=3.0)})
    assert facts.stop is Stop.COMPLETE
    assert facts.load_s == pytest.approx(9.5 + ANSWER_S + 3.02)
    assert {each.end for each in facts.records} == {End.FINISHED}


def test_a_turn_due_after_the_window_is_not_waited_for() -> None:
    facts, _ = probe(talks((9.0, 1.0, 1.0), (9.9,)), answer())
    assert facts.stop is Stop.COMPLETE
    assert 10.0 <= facts.load_s <= 10.25
    assert facts.abandoned_turns == 2


def test_a_conversation_ends_with_a_failure_and_its_turns_are_told() -> None:
    facts, engine = probe(talks((1.0, 0.5, 0.5, 0.5), (2.0, 0.5)), answer(), {1: fail(0.1)})
    assert [each.index for each in engine.received] == [0, 1, 3, 5]
    assert facts.abandoned_turns == 2
    assert facts.window.scheduled == 4


def test_turns_that_wait_at_the_drain_limit_are_told() -> None:
    facts, _ = probe(talks((1.0, 0.5, 0.5), (2.0, 0.5)), answer(), {0: silent()})
    assert facts.stop is Stop.DRAIN_LIMIT
    assert facts.records[0].end is End.UNFINISHED
    assert facts.abandoned_turns == 2


def test_a_turn_that_somebody_thinks_about_when_the_load_ends_early_is_abandoned() -> None:
    class Whistle:
        def resolved(self, record: RequestRecord) -> None: ...

        def look(self, now_s: float, _in_flight: int, sent: int) -> Stop | None:
            assert sent <= 2
            return Stop.LOST if now_s >= 3.9 else None

    facts, engine = probe(talks((1.0, 4.0, 0.5), (8.0, 0.5)), answer(), referee=Whistle())
    assert [each.index for each in engine.received] == [0]
    assert facts.abandoned_turns == 2  # of the conversation that began
    assert facts.window.scheduled == 2  # its first turn and the other one's, both due in the window


def test_a_probe_of_conversations_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.3):
                await alone(Scripted(answer()), talks((1.0, 5.0), (2.0, 0.1)))

    run_virtual(main())


def test_the_multi_turn_workload_runs_on_lengths_alone() -> None:
    async def main() -> ProbeFacts:
        plan = open_loop(
            Draw(Conversations(), 0, 0, arrivals=POISSON),
            rate_rps=4.0,
            ramp_s=5.0,
            duration_s=30.0,
            drain_limit_s=lambda _: 20.0,
            text=None,
        )
        async with SimulatedEngine(StepModel(EngineSettings(), 0)) as engine:
            return await run_probe(engine, plan)

    facts = run_virtual(main())
    inside = [each for each in facts.records if each.in_cohort]
    assert facts.stop is Stop.COMPLETE
    assert len(inside) == facts.window.scheduled > 60
    assert all(5.0 <= each.due_s < 35.0 for each in inside)
    assert sum(each.kind != "first turn" for each in inside) > 30
    assert max(abs(each.send_lag_s or 0.0) for each in facts.records) < 1e-6


def test_times_count_from_a_start_a_moment_ahead() -> None:
    seen: list[float] = []

    async def act(request: Request, flight: Flight) -> None:
        seen.append(loop_s())
        await answer()(request, flight)

    facts, _ = probe(talks((0.0,)), act)
    assert seen == pytest.approx([0.05])
    assert facts.records[0].sent_s == pytest.approx(0.0)
