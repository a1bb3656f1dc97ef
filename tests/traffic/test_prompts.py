"""Prompt text: exact lengths, and never the same text twice on one server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from engines import words
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.prompts import TextKey, TokenRatio, prompt, prompts, sentences
from traffic.randomness import stream
from traffic.records import Message
from traffic.workload import CHAT_MIX

KINDS = [*(each.name for each in CHAT_MIX.classes), "fixed"]
WORDS = TokenRatio()


def one_probe(
    *, seed: int = 0, start: int = 0, rate_rps: float = 11.1803, repeat: int = 0, attempt: int = 0, n: int = 50
) -> list[tuple[Message, ...]]:
    return CHAT_MIX.texts(CHAT_MIX.draw(seed, repeat, n), WORDS, TextKey(seed, start, rate_rps, repeat, attempt))


def openings(texts: Sequence[tuple[Message, ...]], count: int = 16) -> list[str]:
    """The first words of each prompt: what a prefix cache would look at."""
    return [" ".join(" ".join(each.text for each in messages).split()[:count]) for messages in texts]


@settings(deadline=None, max_examples=60)
@given(kind=st.sampled_from(KINDS), count=st.integers(1, 3000), seed=st.integers(0, 2**31))
def test_a_prompt_has_exactly_the_words_asked_for(kind: str, count: int, seed: int) -> None:
    assert words(prompt(stream("test", seed), kind, count)) == count


@settings(deadline=None)
@given(count=st.integers(0, 200), seed=st.integers(0, 99))
def test_sentences_are_exactly_as_many_words(count: int, seed: int) -> None:
    text = sentences(stream("test", seed), count)
    assert len(text) == count
    assert all(word.strip(",.").isalpha() for word in text)


def test_no_two_prompts_of_a_probe_share_a_prefix() -> None:
    probe = one_probe(n=300)
    assert len(set(probe)) == 300
    assert len(set(openings(probe))) == 300


def test_no_prompt_comes_again_at_another_rate_repeat_start_attempt_or_seed() -> None:  # R17
    probes = [
        one_probe(),
        one_probe(rate_rps=11.4965),
        one_probe(rate_rps=8.0),
        one_probe(repeat=1),
        one_probe(repeat=2),
        one_probe(start=1),
        one_probe(attempt=1),
        one_probe(attempt=2),
        one_probe(seed=1),
    ]
    texts = [opening for probe in probes for opening in openings(probe)]
    assert len(set(texts)) == len(texts) == len(probes) * 50


def test_neighbouring_rates_have_their_own_text() -> None:
    assert not set(openings(one_probe(rate_rps=11.1803))) & set(openings(one_probe(rate_rps=11.1804)))


def test_the_same_keys_give_the_same_text() -> None:
    assert one_probe(seed=4, start=2, repeat=1, attempt=3) == one_probe(seed=4, start=2, repeat=1, attempt=3)


def test_a_turn_with_history_ends_with_the_user() -> None:
    messages = prompt(stream("test", 0), "turn with history", 1200)
    assert [each.role for each in messages] == ["user", "assistant", "user"]
    assert all(each.text for each in messages)


def test_a_history_too_short_to_split_is_one_turn() -> None:
    assert [each.role for each in prompt(stream("test", 0), "turn with history", 39)] == ["user"]


@pytest.mark.parametrize("kind", ["document question", "long answer"])
def test_fixed_wording_stands_after_the_fresh_text(kind: str) -> None:
    one, other = (prompt(stream("test", seed), kind, 300)[0].text.split() for seed in (0, 1))
    assert one[:16] != other[:16]
    assert one[-8:] == other[-8:]


@settings(deadline=None)
@given(
    per_word=st.floats(1.0, 3.0), overhead=st.floats(0.0, 50.0), tokens=st.integers(60, 8192), seed=st.integers(0, 9)
)
def test_a_measured_ratio_brings_the_tokens_within_half_a_word(
    per_word: float, overhead: float, tokens: int, seed: int
) -> None:
    ratio = TokenRatio(per_word, overhead)
    made = prompts(["fixed"], [tokens], ratio, TextKey(seed, 0, 8.0, 0))
    assert words(made[0]) * per_word + overhead == pytest.approx(tokens, abs=per_word / 2 + 1e-6)


def test_a_prompt_shorter_than_the_chat_template_is_one_word() -> None:
    assert TokenRatio(1.3, 20.0).words(5) == 1
