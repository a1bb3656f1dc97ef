"""From verdicts to rows: numbers as they are written, null where there is none."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from engines import failed, probe_facts, record
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.capacity import CapacityVerdict, Observation, conclude
from gates.slo import DEFAULT_SLO, Objective, parse_objective
from gates.verdict import LimitedBy, Outcome, judge_probe
from reports.requests import read_requests, write_requests
from reports.rows import probe_row, sweep_document
from reports.run_directory import ProbeRow, SweepDocument, to_json
from traffic.probe import ProbeFacts, Stop
from traffic.records import End, RequestRecord


def row(facts: ProbeFacts, slo: tuple[Objective, ...] = DEFAULT_SLO) -> ProbeRow:
    return probe_row(judge_probe(facts, slo), purpose="search", requests_file="probes/01-10.00.parquet")


def good(n: int = 200, **changes: Any) -> list[RequestRecord]:
    return [record(index, **changes) for index in range(n)]


def window_at(rate_rps: float, repeat: int = 0, *, bad: int = 0, **changes: Any) -> ProbeRow:
    """A row of 200 requests of which the first `bad` have 60 ms per token."""
    records = [record(index, tpot_s=0.06 if index < bad else 0.02) for index in range(200)]
    return row(probe_facts(records, window={"rate_rps": rate_rps, "repeat": repeat}, **changes))


def document(rows: list[ProbeRow]) -> SweepDocument:
    seen = [
        Observation(each.rate_rps, each.repeat, each.outcome is Outcome.PASS)
        for each in rows
        if each.is_valid and each.rate_rps is not None
    ]
    return sweep_document(
        label="one",
        engine="simulated",
        seed=3,
        slo=DEFAULT_SLO,
        is_smoke=False,
        capacity=conclude(seen, CapacityVerdict.FOUND),
        warm_up=None,
        probes=rows,
    )


def test_a_row_has_the_numbers_of_its_requests() -> None:
    records = [record(index, ttft_s=0.1 + index / 1000, tpot_s=0.02 + index / 1e5) for index in range(200)]
    made = row(probe_facts(records, window={"window_end_s": 20.0}, load_s=25.0))
    ttft = [each.ttft_s for each in records]
    tpot = [each.tpot_s for each in records]
    assert made.ttft_p50_s == np.quantile(ttft, 0.5, method="inverted_cdf")
    assert made.ttft_p99_s == np.quantile(ttft, 0.99, method="inverted_cdf")
    assert made.tpot_p50_s == np.quantile(tpot, 0.5, method="inverted_cdf")
    assert made.tpot_p99_s == np.quantile(tpot, 0.99, method="inverted_cdf")
    assert (made.n, made.n_tpot, made.over_ttft, made.over_tpot, made.misses, made.failed) == (200, 200, 0, 0, 0, 0)
    assert (made.rate_rps, made.repeat, made.concurrency) == (10.0, 0, None)
    assert (made.window_s, made.load_s, made.offered_rps) == (20.0, 25.0, 10.0)
    assert (made.outcome, made.is_valid, made.limited_by) == (Outcome.PASS, True, None)
    assert made.started_utc == "2026-12-01T10:00:00+00:00"


def test_below_a_hundred_requests_there_is_no_p99() -> None:
    slo = (parse_objective("ttft:p90:2000"), parse_objective("tpot:p90:50"))
    few = row(probe_facts(good(99)), slo)
    assert (few.ttft_p99_s, few.tpot_p99_s) == (None, None)
    assert few.ttft_p50_s is not None
    assert row(probe_facts(good(100)), slo).ttft_p99_s is not None


def test_a_percentile_that_falls_on_a_failure_is_null() -> None:
    made = row(probe_facts([failed(each) if each.index % 20 == 0 else each for each in good()]))
    assert (made.ttft_p99_s, made.tpot_p99_s) == (None, None)
    assert made.ttft_p50_s == pytest.approx(0.2)
    assert made.objectives[0].value_s is None
    assert (made.failed, made.over_ttft, made.over_tpot) == (10, 10, 10)


def test_the_client_tells_how_it_fared() -> None:
    late = [record(index, sent_s=index * 0.1 + index * 1e-5) for index in range(200)]
    made = row(probe_facts(late, workers=3, cpu_share=0.42, stall_max_s=0.1, clock_step_s=-0.2, abandoned_turns=4))
    assert made.send_lag_p50_s == pytest.approx(0.00099)
    assert made.send_lag_p99_s == pytest.approx(0.00197)
    assert made.send_lag_max_s == pytest.approx(0.00199)
    assert (made.load_workers, made.client_cpu_share, made.abandoned_turns) == (3, 0.42, 4)
    assert (made.stall_max_s, made.clock_step_s) == (0.1, -0.2)


def test_a_simulated_client_uses_no_core() -> None:
    assert row(probe_facts(good())).client_cpu_share is None


def test_the_servers_prompt_lengths_and_its_cache_stand_beside_what_was_meant() -> None:  # R17, R18
    records = [record(index, prompt_tokens=90 + index % 11, cached_tokens=index % 2) for index in range(200)]
    made = row(probe_facts(records, window={"shared_share": 0.25}))
    assert (made.prompt_tokens_min, made.prompt_tokens_max, made.prompt_tokens_target_mean) == (90, 100, 100.0)
    assert made.prompt_tokens_mean == pytest.approx(94.955)
    assert made.cached_share == pytest.approx(100 / (200 * 94.955))
    assert made.shared_share == 0.25
    assert made.flags[0].startswith("the server counts 95 tokens in a mean prompt (90 to 100), -5.0%")
    unseen = row(probe_facts(good(prompt_tokens=None, cached_tokens=None)))
    assert (unseen.cached_share, unseen.prompt_tokens_min, unseen.prompt_tokens_target_mean) == (None, None, None)


def test_failures_are_told_by_their_words() -> None:
    records = good()
    records[:4] = [
        failed(records[0]),
        failed(records[1]),
        failed(records[2], End.TRUNCATED),
        failed(records[3], End.UNFINISHED),
    ]
    made = row(probe_facts(records))
    assert made.errors == {"HTTP 500: out of memory": 2, "truncated": 1, "unfinished": 1}


def test_every_objective_has_its_own_counts() -> None:
    slo = (parse_objective("e2e:p99:1000"), parse_objective("ttft:p99.5:2000"))
    made = row(probe_facts(good(400, tpot_s=0.09)), slo)
    told = [(each.metric, each.percentile, each.limit_s, each.n, each.over, each.allowed) for each in made.objectives]
    assert told == [("e2e", 99.0, 1.0, 400, 400, 4), ("ttft", 99.5, 2.0, 400, 0, 2)]
    assert made.over_tpot is None  # no objective limits it
    assert made.over_ttft == 0


def test_an_invalid_window_has_counts_and_no_outcome() -> None:
    made = window_at(10.0, bad=50, stall_max_s=9.0)
    assert (made.outcome, made.is_valid, made.over_tpot) == (None, False, 50)
    assert len(made.invalid_reasons) == 1


def test_a_closed_loop_has_a_concurrency_and_no_rate() -> None:
    made = row(probe_facts(good(), window={"rate_rps": None, "concurrency": 32}))
    assert (made.rate_rps, made.concurrency) == (None, 32)


def test_an_early_end_is_told_and_is_no_whole_window() -> None:
    made = row(probe_facts(good(), stop=Stop.LOST, saved_s=40.0))
    assert (made.stop, made.saved_s, made.is_whole) == ("an objective was lost", 40.0, False)
    assert row(probe_facts(good())).is_whole
    assert row(probe_facts(good(), stop=Stop.DRAIN_LIMIT)).is_whole


def test_a_thousand_failures_are_a_row_without_a_strange_number() -> None:  # R14
    made = row(probe_facts([failed(each) for each in good(1000)]))
    text = made.model_dump_json()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["ttft_p99_s"] is None
    assert (made.outcome, made.limited_by, made.goodput_rps) == (Outcome.FAIL, LimitedBy.FAILURES, 0.0)


def test_an_empty_window_is_a_row_too() -> None:
    made = row(probe_facts([], window={"window_end_s": 10.0}))
    assert (made.n, made.outcome, made.ttft_p50_s, made.achieved_share) == (0, None, None, None)


outcomes = st.builds(
    lambda ttft_s, tpot_s, tokens, end, in_cohort: record(
        ttft_s=ttft_s, tpot_s=tpot_s, output_tokens=tokens, end=end, in_cohort=in_cohort
    ),
    ttft_s=st.floats(0.0, 4.0),
    tpot_s=st.floats(0.001, 0.1),
    tokens=st.integers(1, 50),
    end=st.sampled_from([*[End.FINISHED] * 6, *End]),
    in_cohort=st.booleans(),
)


@settings(deadline=None, max_examples=40)
@given(drawn=st.lists(outcomes, max_size=120), stop=st.sampled_from(Stop))
def test_a_row_made_again_from_its_file_is_the_same(
    drawn: list[RequestRecord], stop: Stop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    facts = probe_facts(drawn, stop=stop)
    path = tmp_path_factory.getbasetemp() / "again.parquet"
    write_requests(path, facts)
    made = row(facts)
    assert row(read_requests(path)) == made
    assert ProbeRow.model_validate_json(made.model_dump_json()) == made


def test_a_sweep_names_what_limited_it_at_the_first_failed_rate() -> None:
    made = document([window_at(8.0), window_at(12.0, bad=90), window_at(10.0, bad=9), window_at(10.0, 1, bad=9)])
    assert (made.capacity_rps, made.first_failed_rps, made.limited_by) == (8.0, 10.0, LimitedBy.TPOT)
    assert made.tallies == ["8.00: 1 of 1", "10.00: 0 of 2", "12.00: 0 of 1"]


def test_an_invalid_window_has_no_say_in_what_limited_a_sweep() -> None:
    late = [record(index, ttft_s=3.0) for index in range(200)]
    spoiled = row(probe_facts(late, stall_max_s=9.0))
    assert document([window_at(8.0), spoiled, window_at(10.0, bad=9)]).limited_by is LimitedBy.TPOT


def test_a_sweep_without_a_failure_was_limited_by_nothing() -> None:
    made = document([window_at(8.0), window_at(10.0, bad=2)])
    assert (made.first_failed_rps, made.limited_by) == (None, None)


def test_a_sweep_sums_its_load_and_is_written_with_its_objectives() -> None:
    made = document([window_at(8.0, load_s=30.0), window_at(10.0, load_s=40.0, saved_s=5.0)])
    assert (made.load_s, made.saved_s, made.seed, made.engine) == (70.0, 5.0, 3, "simulated")
    assert made.slo == ["ttft:p99:2000", "tpot:p99:50"]
    assert SweepDocument.model_validate_json(to_json(made)) == made


def test_smoke_percentiles_are_written_as_they_were_judged() -> None:
    slo = tuple(Objective(each.metric, Decimal(90), each.limit_s) for each in DEFAULT_SLO)
    assert {each.percentile for each in row(probe_facts(good()), slo).objectives} == {90.0}
