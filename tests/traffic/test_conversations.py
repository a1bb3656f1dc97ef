"""Conversations: turns that follow answers, histories that grow, and a rate that counts requests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.arrivals import POISSON, Arrivals, Constant
from traffic.conversations import MOST_ANSWER_TOKENS, Conversations, Turns
from traffic.errors import UsageError
from traffic.prompts import TextKey, TokenRatio
from traffic.schedule import Draw, open_loop
from traffic.workload import scaled_max

TALK = Conversations()
WORDS = TokenRatio()
seeds = st.integers(0, 2**31)


def turns(
    talk: Conversations = TALK,
    *,
    rate_rps: float = 8.0,
    seed: int = 0,
    repeat: int = 0,
    horizon_s: float = 60.0,
    scale: float = 1.0,
    arrivals: Arrivals = POISSON,
) -> Turns:
    return talk.turns(arrivals, rate_rps, seed, repeat, horizon_s=horizon_s, length_scale=scale)


@settings(deadline=None, max_examples=30)
@given(rate_rps=st.floats(0.2, 20.0), seed=seeds, think_s=st.floats(0.0, 20.0), most=st.integers(1, 9))
def test_a_turn_comes_after_the_one_it_follows_and_holds_all_that_was_said(
    rate_rps: float, seed: int, think_s: float, most: int
) -> None:
    made = turns(Conversations(min(3.0, (most + 1) / 2), most, think_s), rate_rps=rate_rps, seed=seed)
    assert (np.diff(made.due_s) >= 0).all()
    assert ((made.due_s >= 0) & (made.due_s < 60.0)).all()
    followed = made.after[made.after >= 0]
    assert len(set(followed.tolist())) == len(followed)
    for index in np.flatnonzero(made.after >= 0).tolist():
        before = int(made.after[index])
        assert before < index
        assert made.due_s[index] == pytest.approx(made.due_s[before] + made.think_s[index], abs=1e-9)
        said = made.lengths.input_tokens[before] + made.lengths.output_tokens[before]
        assert made.lengths.shared_tokens[index] == said < made.lengths.input_tokens[index]
        assert made.lengths.kinds[index] == 1
    opening = made.after < 0
    assert not made.lengths.shared_tokens[opening].any()
    assert not made.think_s[opening].any()


@settings(deadline=None, max_examples=30)
@given(seed=seeds, short_s=st.floats(0, 60.0), more_s=st.floats(0, 60.0))
def test_a_longer_horizon_only_appends(seed: int, short_s: float, more_s: float) -> None:
    short, long = turns(seed=seed, horizon_s=short_s), turns(seed=seed, horizon_s=short_s + more_s)
    n = len(short.due_s)
    assert np.array_equal(short.due_s, long.due_s[:n])
    assert np.array_equal(short.after, long.after[:n])
    assert np.array_equal(short.lengths.input_tokens, long.lengths.input_tokens[:n])
    assert (long.due_s[n:] >= short_s).all()


def test_the_rate_counts_requests_from_the_first_second_on() -> None:
    each = [turns(seed=seed, horizon_s=40.0).due_s for seed in range(150)]
    for start_s in (0.0, 20.0):
        counts = np.array([((due_s >= start_s) & (due_s < start_s + 20.0)).sum() for due_s in each])
        assert counts.mean() == pytest.approx(160, abs=3 * counts.std() / math.sqrt(len(each)))


@pytest.mark.parametrize(("mean", "most"), [(1.0, 1), (1.0, 8), (3.0, 8), (4.5, 8), (2.0, 40)])
def test_conversations_have_the_turns_that_are_asked_for(mean: float, most: int) -> None:
    talk = Conversations(mean, most, 0.0)
    made = turns(talk, rate_rps=5000.0 * mean, horizon_s=1.0, arrivals=Constant())
    count = int((made.after < 0).sum())
    assert count == 5000
    depth = np.ones(len(made.after), dtype=np.int64)
    for index in np.flatnonzero(made.after >= 0).tolist():
        depth[index] = depth[made.after[index]] + 1
    longest = np.bincount(depth)[1:]  # conversations that reach each turn
    assert len(made.after) / count == pytest.approx(mean, rel=0.05)
    assert len(longest) <= most
    ratios = longest[1:] / longest[:-1]
    assert (ratios <= 1).all()


def test_think_times_are_exponential_with_the_mean_asked_for() -> None:
    made = turns(Conversations(mean_think_s=2.0), rate_rps=100.0)
    think_s = made.think_s[made.after >= 0]
    assert think_s.mean() == pytest.approx(2.0, rel=0.05)
    assert think_s.std() == pytest.approx(2.0, rel=0.08)


@pytest.mark.parametrize("scale", [0.2, 1.0, 2.0])
def test_no_prompt_or_answer_is_longer_than_the_bounds(scale: float) -> None:
    lengths = turns(Conversations(4.5, 8, 0.0), rate_rps=2000.0, scale=scale, horizon_s=2.0).lengths
    most_in, most_out = scaled_max(Conversations(4.5, 8, 0.0), scale)
    assert lengths.input_tokens.max() <= most_in
    assert lengths.output_tokens.max() <= most_out
    assert min(lengths.input_tokens.min(), lengths.output_tokens.min()) >= 1
    assert scaled_max(TALK, 1.0) == (8 * 1024 + 7 * MOST_ANSWER_TOKENS, MOST_ANSWER_TOKENS)


def test_seed_and_repeat_make_other_conversations() -> None:
    first = turns().lengths.input_tokens[:30].tolist()
    assert first != turns(seed=1).lengths.input_tokens[:30].tolist()
    assert first != turns(repeat=1).lengths.input_tokens[:30].tolist()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mean_turns": 5.0}, "at most 8 turns have a mean of 1 to 4.5, not 5"),
        ({"mean_turns": 0.5}, "not 0.5"),
        ({"mean_turns": math.nan}, "not nan"),
        ({"mean_turns": 1.0, "most_turns": 0}, "at most 0 turns"),
        ({"mean_think_s": -1.0}, "think time must be 0 or more"),
        ({"mean_think_s": math.inf}, "think time must be 0 or more"),
    ],
)
def test_conversations_that_cannot_be_are_refused(given: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Conversations(**given)  # type: ignore[arg-type]


def test_the_first_turn_that_is_seen_brings_its_history_and_later_ones_are_new_text_alone() -> None:
    plan = open_loop(
        Draw(TALK, 0, 0), rate_rps=8.0, ramp_s=5.0, duration_s=10.0, drain_limit_s=lambda _: 5.0, text=WORDS
    )
    made = turns(horizon_s=20.0)
    assert [each.due_s for each in plan.requests] == made.due_s.tolist()
    assert [each.after for each in plan.requests] == [None if after < 0 else after for after in made.after.tolist()]
    kinds = set()
    for request in plan.requests:
        roles = [message.role for message in request.messages]
        sent = sum(len(message.text.split()) for message in request.messages)
        history = 0
        if request.after is not None:
            before = plan.requests[request.after]
            history = before.input_tokens + before.output_tokens
        assert sent == request.input_tokens - history
        kinds.add((request.kind, request.after is None, len(roles)))
    assert kinds == {("first turn", True, 1), ("turn with history", True, 3), ("turn with history", False, 1)}
    assert plan.window.duplicate_prompts == 0
    assert 0.3 < plan.window.shared_share < 0.9


def test_the_longest_answer_counts_turns_that_may_still_come_into_the_window() -> None:
    plan = open_loop(
        Draw(TALK, 0, 0), rate_rps=8.0, ramp_s=30.0, duration_s=2.0, drain_limit_s=lambda _: 0.0, text=None
    )
    possible = [each for each in plan.requests if each.after is not None or each.due_s >= 30.0]
    assert plan.window.longest_output_tokens == max(each.output_tokens for each in possible)
    assert plan.window.longest_output_tokens > max(each.output_tokens for each in possible if each.in_cohort)


def test_single_draws_of_turns_bring_their_history() -> None:
    lengths = TALK.draw(0, 0, 40)
    assert len(lengths.kinds) == 40
    assert not lengths.shared_tokens.any()
    texts = TALK.texts(lengths, WORDS, TextKey(0, 0, 8.0, 0))
    assert [sum(len(each.text.split()) for each in text) for text in texts] == lengths.input_tokens.tolist()
