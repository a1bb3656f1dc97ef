"""Dealing a schedule to several senders, and making one of what they did: nobody is lost, nobody comes twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engines import record, requests, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.dealing import deal, merged, of_the_lost
from traffic.records import End, Request
from traffic.schedule import Schedule
from traffic.sender import Sent

NOTHING = Sent(records=(), abandoned_turns=0, stall_max_s=0.0, clock_step_s=0.0, cpu_share=None)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """First turns, and later ones that follow any turn without a follower."""
    made: list[Request] = []
    free: list[int] = []
    for index in range(draw(st.integers(0, 40))):
        after = draw(st.sampled_from([None, *free]))
        if after is not None:
            free.remove(after)
        free.append(index)
        made.append(Request(index, index * 0.1, "turn", 10, 3, after=after))
    return Schedule(schedule([]).window, tuple(made))


@settings(deadline=None, max_examples=40)
@given(schedules(), st.integers(1, 6))
def test_every_request_is_dealt_once_in_its_order_and_conversations_stay_together(plan: Schedule, hands: int) -> None:
    parts = deal(plan, hands)
    assert len(parts) == hands
    assert sorted(request.index for part in parts for request in part.requests) == [
        request.index for request in plan.requests
    ]
    for part in parts:
        indices = [request.index for request in part.requests]
        assert indices == sorted(indices)
        assert all(request.after is None or request.after in indices for request in part.requests)
        assert part.window == plan.window


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 50), st.integers(1, 6))
def test_single_requests_are_dealt_in_turn(count: int, hands: int) -> None:
    plan = schedule([index * 0.1 for index in range(count)])
    assert [part.requests for part in deal(plan, hands)] == [plan.requests[hand::hands] for hand in range(hands)]


def test_one_hand_holds_everything() -> None:
    plan = schedule([0.0, 1.0, 2.0])
    assert deal(plan, 1) == [plan]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=40))
def test_records_of_several_are_in_the_order_of_the_schedule(holders: list[int]) -> None:
    records = [record(index) for index in range(len(holders))]
    parts = [
        replace(NOTHING, records=tuple(each for each, holder in zip(records, holders, strict=True) if holder == hand))
        for hand in range(4)
    ]
    assert merged(parts).records == tuple(records)


def test_of_what_several_say_of_themselves_the_worst_stands_and_counts_add_up() -> None:
    one = Sent(records=(), abandoned_turns=2, stall_max_s=0.1, clock_step_s=0.5, cpu_share=0.4)
    two = Sent(records=(), abandoned_turns=3, stall_max_s=0.3, clock_step_s=-0.9, cpu_share=0.2)
    assert merged([one, two]) == Sent(records=(), abandoned_turns=5, stall_max_s=0.3, clock_step_s=-0.9, cpu_share=0.4)
    assert merged([one, NOTHING]).cpu_share == 0.4
    assert merged([NOTHING]).cpu_share is None


def test_of_a_lost_sender_every_request_that_was_due_is_accounted_for() -> None:
    part = schedule([0.0, 1.0, 2.0, 3.0])
    told = [record(1, due_s=1.0)]
    lost = of_the_lost(part, told, load_s=2.5)
    assert {each.index: each.end for each in lost.records} == {
        0: End.UNRESOLVED,
        1: End.FINISHED,
        2: End.UNRESOLVED,
    }
    assert all(each.sent_s is None for each in lost.records if each.index != 1)


def test_later_turns_of_a_lost_sender_are_abandoned() -> None:
    first, other = requests([0.0, 5.0])
    part = Schedule(schedule([]).window, (first, replace(other, after=0)))
    assert of_the_lost(part, [], load_s=1.0).abandoned_turns == 1
    assert of_the_lost(part, [record(0), record(1)], load_s=9.0).abandoned_turns == 0


@pytest.mark.parametrize("hands", [2, 3])
def test_parts_together_have_the_cohort_of_the_whole(hands: int) -> None:
    plan = schedule([index * 0.5 for index in range(40)], start_s=3.0)
    cohorts = [sum(request.in_cohort for request in part.requests) for part in deal(plan, hands)]
    assert sum(cohorts) == plan.window.scheduled
    assert max(cohorts) - min(cohorts) <= 1
