"""The verdict on a window with what its server said: a warm cache, a template that every prompt begins with."""

from __future__ import annotations

import pytest
from engines import probe_facts, record

from gates.slo import DEFAULT_SLO
from gates.validity import MEASURED
from gates.verdict import Outcome, ProbeVerdict
from slo_bench.judgement import judge_window
from traffic.probe import LEAD_S
from traffic.prompts import TokenRatio
from traffic.server_facts import ServerSample


def judged(
    *, usage: int | None, counters: int | None, overhead_tokens: float = 0.0, shared_share: float = 0.0
) -> ProbeVerdict:
    """200 prompts of 100 tokens. usage, counters: cached tokens of each, as its answer and as the server told."""
    facts = probe_facts(
        [record(index, cached_tokens=usage) for index in range(200)], window={"shared_share": shared_share}
    )
    samples = [
        ServerSample(
            at_s,
            facts.started_utc.timestamp() + LEAD_S + at_s,
            cached_tokens_total=None if counters is None else counters * int(10 * at_s),
            looked_up_tokens_total=None if counters is None else 100 * int(10 * at_s),
        )
        for at_s in (0.5, 10.0, 19.5)
    ]
    text = TokenRatio(1.0, overhead_tokens)
    return judge_window(facts, DEFAULT_SLO, MEASURED, samples=samples, text=text)


WARM = "35.0% of the prompt tokens came from a prefix cache: restart the server or use another --seed"


def test_a_warm_cache_is_found_by_the_servers_counts_where_answers_do_not_tell() -> None:  # R17
    verdict = judged(usage=None, counters=35)
    assert verdict.invalid_reasons == (WARM,)
    assert verdict.outcome is None
    assert verdict.cached_share == pytest.approx(0.35)


def test_a_proxy_that_says_nothing_was_cached_does_not_outweigh_the_server() -> None:
    assert judged(usage=0, counters=35).invalid_reasons == (WARM,)


def test_what_both_tell_is_said_once() -> None:
    assert judged(usage=35, counters=35).invalid_reasons == (WARM,)


def test_a_cache_that_nobody_saw_is_no_zero() -> None:
    verdict = judged(usage=None, counters=None)
    assert (verdict.cached_share, verdict.outcome) == (None, Outcome.PASS)
    assert judged(usage=0, counters=None).cached_share == 0.0
    assert judged(usage=None, counters=0).cached_share == 0.0


def test_what_the_workload_repeats_is_no_reason() -> None:
    assert judged(usage=None, counters=35, shared_share=0.35).outcome is Outcome.PASS
    assert (
        "though the workload repeats only 30.0%" in judged(usage=None, counters=35, shared_share=0.3).invalid_reasons[0]
    )


@pytest.mark.parametrize(
    ("overhead_tokens", "cached", "is_valid"), [(15.0, 16, False), (40.0, 32, True), (40.0, 35, False)]
)
def test_a_templates_whole_blocks_may_be_cached_in_every_prompt(
    overhead_tokens: float, cached: int, *, is_valid: bool
) -> None:
    verdict = judged(usage=cached, counters=None, overhead_tokens=overhead_tokens)
    assert verdict.is_valid == is_valid
    assert verdict.facts.window.shared_share == pytest.approx(0.32 if overhead_tokens == 40.0 else 0.0)
