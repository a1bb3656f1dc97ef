"""Later turns: what they say, when they are due, and which of them never come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engines import record, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.later_turns import LaterTurns
from traffic.records import End, Message, Request

WINDOW = schedule([]).window
"""Measured from 0 to 10 s."""


def talk(*think_s: float, with_text: bool = True) -> list[Request]:
    """A conversation: a first turn at 1 s, and one later turn for each think time."""
    turns = [Request(0, 1.0, "first", 10, 3, messages=(Message("user", "0"),) if with_text else ())]
    for index, pause_s in enumerate(think_s, start=1):
        text = (Message("user", str(index)),) if with_text else ()
        turns.append(Request(index, 1.0, "later", 20, 3, messages=text, after=index - 1, think_s=pause_s))
    return turns


def test_a_turn_repeats_all_that_was_said_with_the_answer_in_the_servers_own_words() -> None:
    turns = talk(0.5, 0.5)
    later = LaterTurns(turns, WINDOW)
    second = later.next_turn(turns[0], record(0), ["It ", "is."])
    assert second is not None
    assert second.messages == (Message("user", "0"), Message("assistant", "It is."), Message("user", "1"))
    third = later.next_turn(second, record(1), ["No."])
    assert third is not None
    assert third.messages == (*second.messages, Message("assistant", "No."), Message("user", "2"))


def test_a_turn_is_due_when_the_user_has_thought_about_the_answer() -> None:
    turns = talk(2.5)
    second = LaterTurns(turns, WINDOW).next_turn(turns[0], record(0, ended_s=4.25), [])
    assert second is not None
    assert (second.due_s, second.input_tokens, second.output_tokens) == (pytest.approx(6.75), 20, 3)


@pytest.mark.parametrize(("ended_s", "in_cohort"), [(7.4, True), (7.5, False), (30.0, False)])
def test_the_moment_at_which_it_is_due_decides_whether_it_is_measured(ended_s: float, in_cohort: bool) -> None:
    turns = talk(2.5)
    second = LaterTurns(turns, WINDOW).next_turn(turns[0], record(0, ended_s=ended_s), [])
    assert second is not None
    assert second.in_cohort is in_cohort


def test_lengths_alone_stay_lengths_alone() -> None:
    turns = talk(0.5, with_text=False)
    second = LaterTurns(turns, WINDOW).next_turn(turns[0], record(0), [])
    assert second is not None
    assert second.messages == ()


@pytest.mark.parametrize("end", [end for end in End if end is not End.FINISHED])
def test_a_conversation_ends_with_a_turn_that_did_not_finish(end: End) -> None:
    turns = talk(0.5)
    assert LaterTurns(turns, WINDOW).next_turn(turns[0], record(0, end=end), ["half an"]) is None


def test_the_last_turn_is_followed_by_nothing() -> None:
    turns = talk(0.5)
    later = LaterTurns(turns, WINDOW)
    assert [later.follows(index) for index in (0, 1, 2)] == [True, False, False]
    assert later.next_turn(turns[1], record(1), []) is None


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=12))
def test_what_never_came_of_conversations_that_began_is_counted(talks: list[tuple[int, int]]) -> None:
    requests: list[Request] = []
    known: set[int] = set()
    for turns, sent in talks:
        base = len(requests)
        for turn in range(turns):
            request = Request(base + turn, 0.0, "turn", 10, 3, after=base + turn - 1 if turn else None)
            requests.append(request)
            if turn < sent:
                known.add(request.index)
    expected = sum(turns - sent for turns, sent in talks if 0 < sent < turns)
    assert LaterTurns(requests, replace(WINDOW)).abandoned(known) == expected
