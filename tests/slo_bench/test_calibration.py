"""Words per token: what the server counts, and no guess where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from engines import Act, Scripted, ScriptedHost, answer, fail, loop_s, record, words
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.calibration import COUNTED_TOKENS, MOST_COUNTED, SHORT_PROMPTS, SHORT_WORDS, corrected, token_ratio
from slo_bench.hosts import EngineFacts
from traffic.errors import EngineError, UsageError
from traffic.prompts import TextKey, TokenRatio
from traffic.records import End, Flight, Message, Request
from traffic.virtual_time import run_virtual
from traffic.workload import CHAT_MIX, Workload, fixed_lengths

Count = Callable[[Sequence[Message]], int]


def by_usage(count: Count) -> Act:
    """Answers with one token and that usage count."""

    async def act(request: Request, flight: Flight) -> None:
        flight.prompt_tokens = count(request.messages)
        flight.token(loop_s())
        flight.finish(loop_s(), End.FINISHED)

    return act


def pieces(messages: Sequence[Message]) -> int:
    """A tokenizer of four letters a token, in a template of 3 tokens a message and 4 around all."""
    text = " ".join(message.text for message in messages)
    return 4 + 3 * len(messages) + sum(-(-len(word) // 4) for word in text.split())


def ratio(host: ScriptedHost, workload: Workload = CHAT_MIX, seed: int = 0, **more: object) -> TokenRatio | None:
    return run_virtual(token_ratio(host, workload, seed=seed, length_scale=1.0, **more))  # type: ignore[arg-type]


def tokenizing(count: Count) -> ScriptedHost:
    return ScriptedHost(Scripted(fail()), needs_text=True, count=count)


def deviation(found: TokenRatio | None, workload: Workload, count: Count) -> float:
    """By how much the mean prompt of 300 is longer than meant."""
    assert found is not None
    lengths = workload.draw(5, 0, 300)
    texts = workload.texts(lengths, found, TextKey(5, 7, 8.0, 0))
    return sum(map(count, texts)) / float(lengths.input_tokens.sum()) - 1


def test_an_engine_that_needs_lengths_only_is_not_asked() -> None:
    host = ScriptedHost(Scripted(fail()), needs_text=False)
    assert ratio(host) is None
    assert host.engine.received == []


def test_the_servers_tokenizer_is_asked_where_it_has_one() -> None:
    host = tokenizing(lambda messages: 2 * words(messages) + 9)
    found = ratio(host)
    assert found is not None
    assert (found.tokens_per_word, found.overhead_tokens) == (pytest.approx(2.0), pytest.approx(9.0))
    assert host.engine.received == []


@pytest.mark.parametrize(("per_word", "overhead"), [(1.0, 0), (1.25, 12), (3.0, 40)])
def test_elsewhere_the_usage_of_one_token_answers_tells(per_word: float, overhead: int) -> None:
    engine = Scripted(by_usage(lambda messages: round(words(messages) * per_word) + overhead))
    found = ratio(ScriptedHost(engine, needs_text=True))
    assert found is not None
    assert found.tokens_per_word == pytest.approx(per_word, rel=0.001)
    assert found.overhead_tokens == pytest.approx(overhead, abs=0.5)
    assert sum(words(each.messages) for each in engine.received) * per_word > COUNTED_TOKENS
    assert {(each.output_tokens, each.force_length) for each in engine.received} == {(1, False)}


@pytest.mark.parametrize("workload", [CHAT_MIX, fixed_lengths(2048, 64)], ids=["chat-mix", "fixed"])
@pytest.mark.parametrize("seed", range(3))
def test_the_mean_prompt_is_as_long_as_meant_before_anything_is_corrected(workload: Workload, seed: int) -> None:  # R18
    assert abs(deviation(ratio(tokenizing(pieces), workload, seed), workload, pieces)) < 0.005


def test_prompts_of_the_workload_are_counted_long_ones_too() -> None:
    counted: list[int] = []

    def count(messages: Sequence[Message]) -> int:
        counted.append(words(messages))
        return words(messages)

    ratio(tokenizing(count))
    assert counted[:SHORT_PROMPTS] == [SHORT_WORDS] * SHORT_PROMPTS
    assert max(counted) > 2500
    assert sum(counted) > COUNTED_TOKENS


def test_short_prompts_are_counted_in_numbers_that_end() -> None:
    engine = Scripted(by_usage(pieces))
    ratio(ScriptedHost(engine, needs_text=True), fixed_lengths(40, 8))
    assert len(engine.received) == SHORT_PROMPTS + 1 + MOST_COUNTED


def test_equal_servers_are_asked_with_the_same_words_and_other_seeds_with_others() -> None:
    asked: list[tuple[Message, ...]] = []

    def count(messages: Sequence[Message]) -> int:
        asked.append(tuple(messages))
        return words(messages)

    for start, seed in ((0, 0), (1, 0), (0, 1)):
        host = tokenizing(count)
        host.facts = EngineFacts("attached", "m", None, None, start=start)
        ratio(host, seed=seed)
    third = len(asked) // 3
    assert asked[:third] == asked[third : 2 * third]
    assert not set(asked[:third]) & set(asked[2 * third :])


def test_short_contexts_are_not_asked_with_long_prompts() -> None:
    counted: list[int] = []

    def count(messages: Sequence[Message]) -> int:
        counted.append(words(messages))
        return 3 * words(messages) + 5

    assert ratio(tokenizing(count), fixed_lengths(64, 8)) is not None
    assert max(counted) <= 20


def test_a_server_that_counts_nothing_is_refused_rather_than_guessed() -> None:
    with pytest.raises(EngineError, match="counts no prompt tokens"):
        ratio(ScriptedHost(Scripted(answer(tokens=1)), needs_text=True))


def test_a_server_that_counts_the_longer_prompt_no_longer_is_refused() -> None:
    with pytest.raises(EngineError, match="counts 20 and 20 tokens"):
        ratio(tokenizing(lambda _: 20))


def test_a_server_that_fails_is_told_with_its_own_words() -> None:
    with pytest.raises(EngineError, match="did not answer a prompt whose tokens it should count: HTTP 500"):
        ratio(ScriptedHost(Scripted(fail()), needs_text=True))


def test_a_template_never_counts_below_nothing() -> None:
    found = ratio(tokenizing(lambda messages: max(1, 3 * words(messages) - 20)))
    assert found is not None
    assert found.overhead_tokens == 0.0


def test_a_local_tokenizer_spares_the_server_the_long_prompts() -> None:
    engine = Scripted(by_usage(pieces))

    def local(text: str) -> int:
        return sum(-(-len(word) // 4) for word in text.split())

    found = ratio(ScriptedHost(engine, needs_text=True), tokenizer=local)
    assert abs(deviation(found, CHAT_MIX, pieces)) < 0.01
    assert len(engine.received) == SHORT_PROMPTS + 1


def test_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(UsageError, match="--tokenizer is not the server's: it counts"):
        ratio(tokenizing(pieces), tokenizer=lambda text: len(text.split()))


def counted_as(prompt_tokens: int | None, n: int = 100) -> list[object]:
    return [record(index, input_tokens=2048, prompt_tokens=prompt_tokens) for index in range(n)]


def test_a_usage_that_counts_2104_for_2048_is_corrected_by_what_the_warm_up_saw() -> None:  # R18
    before = TokenRatio(tokens_per_word=1.3, overhead_tokens=10.0)
    after = corrected(before, counted_as(2104))  # type: ignore[arg-type]
    assert after.overhead_tokens == 10.0
    sent_words = before.words(2048)
    server_per_word = (2104 - 10) / sent_words
    assert after.words(2048) * server_per_word + 10 == pytest.approx(2048, abs=1)


def test_the_noise_of_a_draw_and_missing_counts_correct_nothing() -> None:
    before = TokenRatio(tokens_per_word=1.3, overhead_tokens=10.0)
    for prompt_tokens in (2048, 2051, 2045, None):
        assert corrected(before, counted_as(prompt_tokens)) == before  # type: ignore[arg-type]
    assert corrected(before, []) == before


@pytest.mark.parametrize(("n", "shift", "is_corrected"), [(30, 3.0, False), (400, 3.0, True), (30, 12.0, True)])
def test_a_deviation_that_the_scatter_of_the_warm_up_explains_corrects_nothing(
    n: int, shift: float, is_corrected: bool
) -> None:
    before = TokenRatio(tokens_per_word=1.3, overhead_tokens=10.0)
    scatter = np.random.default_rng(3).normal(0.0, 7.0, n)
    tokens = np.rint(192 + shift + scatter - scatter.mean()).astype(int).tolist()
    records = [record(index, input_tokens=192, prompt_tokens=each) for index, each in enumerate(tokens)]
    after = corrected(before, records)
    assert (after != before) is is_corrected
    if is_corrected:
        assert after.tokens_per_word == pytest.approx(1.3 * (182 + shift) / 182, rel=0.005)


def test_a_handful_of_answers_correct_nothing() -> None:
    before = TokenRatio(tokens_per_word=1.3, overhead_tokens=10.0)
    assert corrected(before, counted_as(2104, n=7)) == before  # type: ignore[arg-type]
    assert corrected(before, counted_as(2104, n=8)) != before  # type: ignore[arg-type]


@settings(deadline=None, max_examples=50)
@given(
    counts=st.lists(st.tuples(st.integers(1, 9000), st.none() | st.integers(1, 9000)), max_size=30),
    overhead=st.floats(0, 500),
)
def test_a_correction_is_always_a_ratio(counts: list[tuple[int, int | None]], overhead: float) -> None:
    records = [replace(record(0), input_tokens=meant, prompt_tokens=seen) for meant, seen in counts]
    assert corrected(TokenRatio(1.3, overhead), records).tokens_per_word > 0
