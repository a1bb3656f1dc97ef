"""Words per token: what the server counts, and no guess where it does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from engines import Act, Scripted, ScriptedHost, answer, fail, loop_s, words

from slo_bench.calibration import LONG_WORDS, SHORT_WORDS, token_ratio
from traffic.errors import EngineError
from traffic.prompts import TokenRatio
from traffic.records import End, Flight, Message, Request
from traffic.virtual_time import run_virtual


def counting(tokens_per_word: float, overhead: int) -> Act:
    """Answers with one token and the usage count of a server with that tokenizer."""

    async def act(request: Request, flight: Flight) -> None:
        flight.prompt_tokens = round(words(request.messages) * tokens_per_word) + overhead
        flight.token(loop_s())
        flight.finish(loop_s(), End.FINISHED)

    return act


def ratio(host: ScriptedHost, seed: int = 0) -> TokenRatio | None:
    return run_virtual(token_ratio(host, seed))


def test_an_engine_that_needs_lengths_only_is_not_asked() -> None:
    host = ScriptedHost(Scripted(fail()), needs_text=False)
    assert ratio(host) is None
    assert host.engine.received == []


def test_the_servers_tokenizer_is_asked_where_it_has_one() -> None:
    host = ScriptedHost(Scripted(fail()), needs_text=True, count=lambda messages: 2 * words(messages) + 9)
    assert ratio(host) == TokenRatio(tokens_per_word=2.0, overhead_tokens=9.0)
    assert host.engine.received == []


@pytest.mark.parametrize(("per_word", "overhead"), [(1.0, 0), (1.25, 12), (3.0, 40)])
def test_elsewhere_the_usage_count_of_two_answers_tells(per_word: float, overhead: int) -> None:
    found = ratio(ScriptedHost(Scripted(counting(per_word, overhead)), needs_text=True))
    assert found is not None
    assert found.tokens_per_word == pytest.approx(per_word)
    assert found.overhead_tokens == pytest.approx(overhead)


def test_the_two_prompts_are_short_and_ask_for_one_token() -> None:
    engine = Scripted(counting(1.0, 0))
    ratio(ScriptedHost(engine, needs_text=True))
    assert [words(each.messages) for each in engine.received] == [SHORT_WORDS, LONG_WORDS]
    assert {(each.output_tokens, each.force_length) for each in engine.received} == {(1, False)}


def test_every_seed_and_start_asks_with_its_own_words() -> None:
    asked: list[tuple[Message, ...]] = []

    def count(messages: Sequence[Message]) -> int:
        asked.append(tuple(messages))
        return words(messages)

    for seed in (0, 1):
        ratio(ScriptedHost(Scripted(fail()), needs_text=True, count=count), seed)
    assert len(set(asked)) == 4


def test_a_server_that_counts_nothing_is_refused_rather_than_guessed() -> None:
    with pytest.raises(EngineError, match="counts None and None tokens"):
        ratio(ScriptedHost(Scripted(answer(tokens=1)), needs_text=True))


def test_a_server_that_counts_the_longer_prompt_no_longer_is_refused() -> None:
    with pytest.raises(EngineError, match="counts 20 and 20 tokens"):
        ratio(ScriptedHost(Scripted(fail()), needs_text=True, count=lambda _: 20))


def test_a_server_that_fails_one_line_is_told_with_its_own_words() -> None:
    with pytest.raises(EngineError, match="did not answer a prompt of one line: HTTP 500: out of memory"):
        ratio(ScriptedHost(Scripted(fail()), needs_text=True))


def test_a_template_never_counts_below_nothing() -> None:
    found = ratio(ScriptedHost(Scripted(fail()), needs_text=True, count=lambda messages: 3 * words(messages) - 20))
    assert found is not None
    assert found.overhead_tokens == 0.0
