"""A probe's schedule: cohort, drain, and what arms, starts and repeats share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.prompts import TokenRatio
from traffic.randomness import CHUNK
from traffic.schedule import Draw, Schedule, endless_requests, open_loop
from traffic.workload import CHAT_MIX, fixed_lengths

DRAW = Draw(CHAT_MIX, seed=0, repeat=0)


def drain(longest: int) -> float:
    return 2.0 + 0.01 * longest


def made(draw: Draw = DRAW, *, rate_rps: float = 8.0, text: TokenRatio | None = None) -> Schedule:
    return open_loop(draw, rate_rps=rate_rps, ramp_s=2.0, duration_s=10.0, drain_limit_s=drain, text=text)


@settings(deadline=None, max_examples=40)
@given(
    rate_rps=st.floats(0.05, 40.0),
    seed=st.integers(0, 2**31),
    ramp_s=st.floats(0.0, 30.0),
    duration_s=st.floats(1.0, 60.0),
)
def test_the_cohort_is_every_request_due_in_the_window_and_load_goes_on_until_the_drain_ends(
    rate_rps: float, seed: int, ramp_s: float, duration_s: float
) -> None:
    plan = open_loop(
        replace(DRAW, seed=seed),
        rate_rps=rate_rps,
        ramp_s=ramp_s,
        duration_s=duration_s,
        drain_limit_s=drain,
        text=None,
    )
    window = plan.window
    assert (window.window_start_s, window.window_end_s) == (ramp_s, ramp_s + duration_s)
    cohort = [each for each in plan.requests if each.in_cohort]
    assert cohort == [each for each in plan.requests if ramp_s <= each.due_s < ramp_s + duration_s]
    assert window.scheduled == len(cohort)
    assert window.longest_output_tokens == max((each.output_tokens for each in cohort), default=0)
    assert window.drain_end_s == window.window_end_s + drain(window.longest_output_tokens)
    assert [each.index for each in plan.requests] == list(range(len(plan.requests)))
    assert all(each.due_s < window.drain_end_s for each in plan.requests)


def test_a_second_server_start_sees_the_same_load_in_other_words() -> None:
    first, second = (made(replace(DRAW, start=start), text=TokenRatio()) for start in (0, 1))
    assert [replace(each, messages=()) for each in first.requests] == [
        replace(each, messages=()) for each in second.requests
    ]
    assert not {each.messages for each in first.requests} & {each.messages for each in second.requests}


def test_another_attempt_has_the_same_load_in_other_words() -> None:
    first, again = (made(replace(DRAW, attempt=attempt), text=TokenRatio()) for attempt in (0, 1))
    assert [(each.due_s, each.input_tokens, each.output_tokens) for each in first.requests] == [
        (each.due_s, each.input_tokens, each.output_tokens) for each in again.requests
    ]
    assert not {each.messages for each in first.requests} & {each.messages for each in again.requests}


def test_every_rate_sees_the_same_lengths_in_the_same_order() -> None:
    slow, fast = (made(rate_rps=rate_rps).requests for rate_rps in (8.0, 12.5))
    lengths = [[(each.kind, each.input_tokens, each.output_tokens) for each in load] for load in (slow, fast)]
    shared = min(len(slow), len(fast))
    assert lengths[0][:shared] == lengths[1][:shared]
    assert [each.due_s * 8.0 for each in slow[:shared]] == pytest.approx([each.due_s * 12.5 for each in fast[:shared]])


def test_a_repeat_sees_another_draw() -> None:
    first, repeat = (made(replace(DRAW, repeat=repeat)).requests for repeat in (0, 1))
    assert [each.due_s for each in first[:50]] != [each.due_s for each in repeat[:50]]
    assert [each.input_tokens for each in first[:50]] != [each.input_tokens for each in repeat[:50]]


def test_an_engine_that_needs_lengths_only_gets_no_text() -> None:
    plan = made()
    assert {each.messages for each in plan.requests} == {()}
    assert plan.window.duplicate_prompts == 0


def test_prompts_that_come_twice_are_counted() -> None:
    one_word = TokenRatio(tokens_per_word=16.0)
    plan = made(replace(DRAW, workload=fixed_lengths(16, 4)), text=one_word)
    assert plan.window.duplicate_prompts == len(plan.requests) - len({each.messages for each in plan.requests}) > 0
    assert made(text=TokenRatio()).window.duplicate_prompts == 0


def test_prompts_shorter_than_a_cache_block_are_nobodys_duplicates() -> None:
    plan = made(replace(DRAW, workload=fixed_lengths(15, 4)), text=TokenRatio(tokens_per_word=15.0))
    assert len({each.messages for each in plan.requests}) < len(plan.requests)
    assert plan.window.duplicate_prompts == 0


def test_a_window_in_which_nothing_is_due_is_an_empty_cohort() -> None:
    plan = open_loop(DRAW, rate_rps=0.001, ramp_s=0.0, duration_s=1.0, drain_limit_s=drain, text=None)
    assert (plan.window.scheduled, plan.window.longest_output_tokens) == (0, 0)


@pytest.mark.parametrize("force", [True, False])
def test_whether_lengths_are_forced_stands_in_every_request(force: bool) -> None:
    draw = replace(DRAW, force_length=force)
    assert {each.force_length for each in made(draw).requests} == {force}
    assert endless_requests(draw, None)(3).force_length is force


def test_an_endless_load_has_the_same_request_at_an_index_whatever_was_asked_before() -> None:
    wanted = [3, CHUNK + 5, 0, 3 * CHUNK, CHUNK - 1]
    make = endless_requests(DRAW, TokenRatio())
    assert [make(index) for index in wanted] == [endless_requests(DRAW, TokenRatio())(index) for index in wanted]


def test_an_endless_load_repeats_no_text() -> None:
    make = endless_requests(DRAW, TokenRatio())
    assert len({make(index).messages for index in range(60)}) == 60
