"""Prompts in the server's own tokens beside what was meant."""

from __future__ import annotations

import pytest
from engines import failed, probe_facts, record

from gates.prompt_lengths import PromptLengths, prompt_lengths
from gates.slo import DEFAULT_SLO
from gates.verdict import judge_probe
from traffic.probe import ProbeFacts


def counted(*tokens: int | None, meant: int = 2048) -> ProbeFacts:
    return probe_facts([record(index, input_tokens=meant, prompt_tokens=count) for index, count in enumerate(tokens)])


def flag(facts: ProbeFacts) -> str | None:
    lengths = prompt_lengths(facts)
    return None if lengths is None else lengths.flag


def test_the_servers_lengths_stand_beside_the_mean_that_was_meant_for_the_same_requests() -> None:
    facts = probe_facts(
        [
            record(0, input_tokens=100, prompt_tokens=90),
            record(1, input_tokens=200, prompt_tokens=230),
            record(2, input_tokens=9000, prompt_tokens=None),
            failed(record(3, input_tokens=9000, prompt_tokens=None)),
        ]
    )
    assert prompt_lengths(facts) == PromptLengths(mean=160.0, least=90, most=230, target_mean=150.0)


@pytest.mark.parametrize("tokens", [2028, 2048, 2068])
def test_a_mean_within_one_per_cent_is_no_news(tokens: int) -> None:
    assert flag(counted(*[tokens] * 50)) is None


def test_2104_tokens_for_2048_are_a_flag_and_the_window_still_counts() -> None:  # R18
    facts = counted(*[2104] * 200)
    verdict = judge_probe(facts, DEFAULT_SLO)
    assert verdict.is_valid
    assert verdict.flags == (
        "the server counts 2104 tokens in a mean prompt (2104 to 2104), +2.7% from the 2048 that were meant",
    )


def test_prompts_that_are_too_short_are_a_flag_too() -> None:
    said = flag(counted(*[1900] * 10, *[2000] * 10))
    assert said is not None
    assert "(1900 to 2000), -4.8% from the 2048" in said


def test_a_server_that_counts_no_prompts_has_no_lengths() -> None:
    assert prompt_lengths(counted(None, None)) is None
    assert prompt_lengths(probe_facts([])) is None
