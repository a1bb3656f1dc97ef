"""A system message that all prompts share: the same text inside one probe, another in the next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.errors import UsageError
from traffic.prompts import TextKey, TokenRatio
from traffic.schedule import Draw, endless_requests, open_loop
from traffic.shared_prefix import LEAST_FRESH_TOKENS, SharedPrefix
from traffic.workload import CHAT_MIX, fixed_lengths, scaled_max

KEY = TextKey(seed=0, start=0, rate_rps=8.0, repeat=0)
WORDS = TokenRatio()
SHARED = SharedPrefix(CHAT_MIX, 500)


@settings(deadline=None, max_examples=30)
@given(prefix=st.integers(1, 2000), scale=st.floats(0.1, 2.0), seed=st.integers(0, 99))
def test_a_prompts_length_includes_the_prefix(prefix: int, scale: float, seed: int) -> None:
    workload = SharedPrefix(CHAT_MIX, prefix)
    lengths, drawn = workload.draw(seed, 0, 200, scale), CHAT_MIX.draw(seed, 0, 200, scale)
    least = round((prefix + LEAST_FRESH_TOKENS) * scale)
    assert np.array_equal(lengths.input_tokens, np.maximum(drawn.input_tokens, least))
    assert np.array_equal(lengths.output_tokens, drawn.output_tokens)
    assert lengths.shared_tokens.tolist() == [0] + [round(prefix * scale)] * 199
    assert lengths.input_tokens.max() <= scaled_max(workload, scale)[0]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_every_prompt_begins_with_one_system_message_and_goes_on_alone(scale: float) -> None:
    lengths = SHARED.draw(0, 0, 60, scale)
    texts = SHARED.texts(lengths, WORDS, KEY)
    systems = {messages[0] for messages in texts}
    assert [(system.role, len(system.text.split())) for system in systems] == [("system", round(500 * scale))]
    words = [sum(len(message.text.split()) for message in messages) for messages in texts]
    assert words == lengths.input_tokens.tolist()
    assert len({messages[1].text[:40] for messages in texts}) == 60


def test_the_prefix_is_another_in_every_probe() -> None:  # R17
    keys = [KEY, *(replace(KEY, **{name: 1}) for name in ("seed", "start", "repeat", "attempt"))]
    keys += [replace(KEY, rate_rps=8.1), replace(KEY, rate_rps=None)]
    lengths = SHARED.draw(0, 0, 1)
    openings = {" ".join(SHARED.texts(lengths, WORDS, key)[0][0].text.split()[:16]) for key in keys}
    assert len(openings) == len(keys)


def test_a_closed_loop_has_one_prefix_too() -> None:
    make = endless_requests(Draw(SHARED, 0, 0), WORDS)
    made = [make(index).messages for index in (5, 0, 9)]
    assert len({messages[0] for messages in made}) == 1
    assert len({messages[1] for messages in made}) == 3


def test_the_window_states_the_share_that_the_workload_repeats() -> None:
    plan = open_loop(
        Draw(SharedPrefix(fixed_lengths(1000, 5), 250), 0, 0),
        rate_rps=8.0,
        ramp_s=2.0,
        duration_s=10.0,
        drain_limit_s=lambda _: 0.0,
        text=None,
    )
    assert plan.window.shared_share == 0.25
    assert {each.input_tokens for each in plan.requests} == {1000}


def test_name_and_source_say_it() -> None:
    assert SHARED.name == "chat-mix+prefix-500"
    assert SHARED.source.endswith("every prompt begins with the same 500 tokens")
    assert SHARED.kinds == CHAT_MIX.kinds


@pytest.mark.parametrize("prefix", [0, -1, 85, 1000])
def test_a_prefix_that_the_prompts_cannot_hold_is_refused(prefix: int) -> None:
    with pytest.raises(UsageError, match=rf"room for a shared prefix of 1 to 84 tokens, not {prefix}"):
        SharedPrefix(fixed_lengths(100, 5), prefix)
