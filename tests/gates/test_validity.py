"""When a probe is no result: every reason at its bound, with cause and remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engines import failed, probe_facts, record

from gates.slo import DEFAULT_SLO, parse_objective
from gates.validity import MEASURED, SMOKE, Bounds, cached_share, invalid_reasons
from traffic.probe import ProbeFacts, Stop
from traffic.records import End, RequestRecord
from traffic.summary import summarise

N = 200


def cohort(**changes: Any) -> list[RequestRecord]:
    return [record(index, **changes) for index in range(N)]


def some(count: int, **changes: Any) -> list[RequestRecord]:
    """A good cohort in which the first `count` differ."""
    return [replace(each, **changes) if each.index < count else each for each in cohort()]


def reasons(facts: ProbeFacts, bounds: Bounds = MEASURED) -> tuple[str, ...]:
    return invalid_reasons(facts, summarise(facts), DEFAULT_SLO, bounds)


def lagging(count: int, lag_s: float) -> ProbeFacts:
    """Of 200 sends, the last 100 before them excepted, `count` are late."""
    return probe_facts([replace(each, sent_s=each.due_s + lag_s) if each.index < count else each for each in cohort()])


def in_one_piece(count: int, tokens: int = 11) -> ProbeFacts:
    whole = cohort(output_tokens=tokens)
    return probe_facts(
        [replace(each, last_token_s=each.first_token_s) if each.index < count else each for each in whole]
    )


def unsent(count: int) -> ProbeFacts:
    return probe_facts(some(count, sent_s=None))


def test_a_good_probe_has_no_reason() -> None:
    assert reasons(probe_facts(cohort())) == ()


INSIDE_AND_OUTSIDE = {
    "send lag": (
        lagging(N, 0.0099),
        lagging(N, 0.0102),
        ["send lag p99 10.2 ms is above 10 ms", "raise --load-workers (now 1)", "free core", "lower the rate"],
    ),
    "send lag of few": (lagging(2, 0.1), lagging(3, 0.1), ["send lag p99 100.0 ms"]),
    "send lag of one": (
        lagging(1, 0.499),
        lagging(1, 0.502),
        ["the largest send lag 502.0 ms is above 500 ms", "raise --load-workers"],
    ),
    "achieved share": (
        unsent(2),
        unsent(3),
        ["98.5% of the requests due in the window", "cannot keep up", "raise --load-workers", "lower the rate"],
    ),
    "a full core": (
        probe_facts(cohort(), cpu_share=0.85),
        probe_facts(cohort(), cpu_share=0.86, workers=2),
        ["the client used 86% of its core", "what it reads is late", "raise --load-workers (now 2)"],
    ),
    "a worker that died": (
        probe_facts(cohort(), workers=2),
        probe_facts(cohort(), stop=Stop.CLIENT, workers=2, client_fault="a load worker died (exit -9)"),
        ["a load worker died (exit -9): free memory and cores of this machine, then measure again"],
    ),
    "client errors": (
        probe_facts(some(1, end=End.FAILED, error="HTTP 500: client: no")),
        probe_facts(some(1, end=End.FAILED, error="client: too many open files; raise ulimit -n")),
        ["1 requests failed in the client", "too many open files; raise ulimit -n"],
    ),
    "stall": (
        probe_facts(cohort(), stall_max_s=0.5),
        probe_facts(cohort(), stall_max_s=0.51),
        ["stood still for 0.51 s", "free the machine"],
    ),
    "clock forward": (
        probe_facts(cohort(), clock_step_s=1.0),
        probe_facts(cohort(), clock_step_s=30.0),
        ["moved apart by +30.0 s", "check time keeping"],
    ),
    "clock back": (
        probe_facts(cohort(), clock_step_s=-1.0),
        probe_facts(cohort(), clock_step_s=-30.0),
        ["moved apart by -30.0 s", "check time keeping"],
    ),
    "short answers": (
        probe_facts(some(2, output_tokens=10)),
        probe_facts(some(3, output_tokens=10)),
        ["3 of 200 answers are shorter than forced", "min_tokens and ignore_eos"],
    ),
    "unstreamed": (in_one_piece(2), in_one_piece(3), ["3 of 200 answers came in one piece", "proxy", "stream"]),
    "overcounted": (
        probe_facts(some(1, output_tokens=11)),
        probe_facts(some(1, output_tokens=12)),
        ["1 answers count more tokens than were asked for", "usage cannot be used"],
    ),
    "prefix cache": (
        probe_facts(some(2, cached_tokens=100)),
        probe_facts(some(3, cached_tokens=100)),
        ["1.5% of the prompt tokens came from a prefix cache", "restart the server", "another --seed"],
    ),
    "duplicates": (
        probe_facts(cohort(), window={"duplicate_prompts": 0}),
        probe_facts(cohort(), window={"duplicate_prompts": 1}),
        ["1 prompts were sent twice", "raise --length-scale"],
    ),
    "sample": (
        probe_facts(cohort()[:100]),
        probe_facts(cohort()[:99]),
        ["99 requests are too few for a p99", "at least 100", "raise --duration or the rate"],
    ),
}


@pytest.mark.parametrize("name", INSIDE_AND_OUTSIDE)
def test_a_reason_appears_exactly_when_its_bound_is_crossed_and_names_cause_and_remedy(name: str) -> None:
    inside, outside, words = INSIDE_AND_OUTSIDE[name]
    assert reasons(inside) == ()
    (reason,) = reasons(outside)
    assert [word for word in words if word not in reason] == []
    assert "\n" not in reason


def test_every_reason_is_told_at_once() -> None:
    window = {"duplicate_prompts": 4}
    facts = probe_facts(some(50, sent_s=None), stall_max_s=3.0, clock_step_s=9.0, cpu_share=0.99, window=window)
    assert len(reasons(facts)) == 5


def test_a_closed_loop_is_not_told_to_take_what_it_cannot_have() -> None:
    (reason,) = reasons(probe_facts(cohort(), cpu_share=0.99, window={"concurrency": 500, "rate_rps": None}))
    assert "lower --concurrency" in reason
    assert "--load-workers" not in reason


def test_where_nobody_counts_cpu_time_nobody_is_accused_of_it() -> None:  # the simulated engine
    assert reasons(probe_facts(cohort(), cpu_share=None)) == ()


def test_twenty_requests_are_too_few_to_say_however_good_they_are() -> None:  # R15 (b)
    (reason,) = reasons(probe_facts(cohort()[:20]))
    assert reason.startswith("20 requests are too few for a p99")


def test_the_highest_percentile_sets_the_sample() -> None:
    slo = [parse_objective("ttft:p90:2000"), parse_objective("tpot:p99.9:50")]
    facts = probe_facts(cohort())
    (reason,) = invalid_reasons(facts, summarise(facts), slo)
    assert "too few for a p99.9 (at least 1000)" in reason


@pytest.mark.parametrize("stop", [Stop.LOST, Stop.GROWTH, Stop.ERRORS])
def test_an_early_end_decides_by_counts_and_needs_no_sample(stop: Stop) -> None:
    facts = probe_facts(cohort()[:20], stop=stop, window={"scheduled": N})
    assert reasons(facts) == ()


def test_the_drain_limit_is_no_early_end() -> None:
    assert len(reasons(probe_facts(cohort()[:20], stop=Stop.DRAIN_LIMIT))) == 1


def test_unresolved_requests_do_not_fill_a_sample() -> None:
    facts = probe_facts([*cohort()[:99], record(99, end=End.UNRESOLVED)])
    assert "99 requests are too few" in reasons(facts)[0]


def test_failures_fill_a_sample() -> None:
    assert reasons(probe_facts([failed(each) if each.index % 2 else each for each in cohort()])) == ()


def test_an_answer_that_was_not_forced_may_be_short() -> None:  # R05
    assert reasons(probe_facts(cohort(force_length=False, output_tokens=10, requested_output_tokens=256))) == ()


def test_a_busy_server_may_send_a_short_answer_in_one_piece() -> None:
    assert reasons(in_one_piece(N, tokens=7)) == ()


def test_a_server_that_does_not_count_its_cache_is_not_accused() -> None:
    assert reasons(probe_facts(cohort(cached_tokens=None))) == ()
    assert reasons(probe_facts(cohort(prompt_tokens=None, cached_tokens=50))) == ()


def test_a_server_that_leaves_out_a_count_of_nothing_counts_the_rest() -> None:
    told = [replace(each, cached_tokens=16 if each.index == 0 else None) for each in cohort()]
    assert cached_share(probe_facts(told)) == pytest.approx(16 / (100 * N))
    assert cached_share(probe_facts(cohort(cached_tokens=None))) is None


def test_what_the_workload_repeats_may_come_from_a_cache_and_no_more() -> None:
    shared = {"shared_share": 0.25}
    assert reasons(probe_facts(cohort(cached_tokens=26), window=shared)) == ()
    (reason,) = reasons(probe_facts(cohort(cached_tokens=27), window=shared))
    assert "27.0% of the prompt tokens came from a prefix cache, though the workload repeats only 25.0%" in reason
    assert len(reasons(probe_facts(cohort(cached_tokens=26)))) == 1


def test_requests_of_the_ramp_are_not_looked_at() -> None:
    ramp = [
        record(index, in_cohort=False, error="client: too many open files", cached_tokens=100) for index in range(50)
    ]
    later = [replace(each, due_s=each.due_s + 5.0, sent_s=each.due_s + 5.0) for each in cohort()]
    facts = probe_facts([*ramp, *later], window={"window_start_s": 5.0})
    assert reasons(facts) == ()


def test_smoke_allows_a_slower_client() -> None:
    assert reasons(lagging(N, 0.09), SMOKE) == ()
    assert reasons(probe_facts(cohort(), stall_max_s=1.9), SMOKE) == ()
    assert reasons(probe_facts(cohort(), cpu_share=1.2), SMOKE) == ()
    assert reasons(lagging(1, 1.9), SMOKE) == ()
    assert len(reasons(lagging(1, 2.1), SMOKE)) == 1
    assert len(reasons(lagging(N, 0.11), SMOKE)) == 1


def test_smoke_needs_twenty_requests_though_its_p90_needs_ten() -> None:
    slo = [parse_objective("ttft:p90:2000"), parse_objective("tpot:p90:50")]

    def told(count: int) -> tuple[str, ...]:
        facts = probe_facts(cohort()[:count])
        return invalid_reasons(facts, summarise(facts), slo, SMOKE)

    assert told(20) == ()
    (reason,) = told(19)
    assert "19 requests are too few" in reason
    assert "at least 20" in reason
