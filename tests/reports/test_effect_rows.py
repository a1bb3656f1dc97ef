from __future__ import annotations

import pytest
from comparisons import pairs
from engines import failed, probe_facts, record

from gates.block import Trend
from gates.comparison import ComparedMetric, compare
from gates.log_ratio import Estimate
from gates.slo import DEFAULT_SLO
from gates.verdict import judge_probe
from reports.effect_rows import block_row, effect_rows, ends, trend_rows
from traffic.probe import LEAD_S
from traffic.server_facts import ServerSample


def test_a_block_tells_its_latencies_its_failures_and_what_its_server_had_left() -> None:
    facts = probe_facts([*[record(index) for index in range(150)], failed(record(150))])
    begun_s = facts.started_utc.timestamp() + LEAD_S
    samples = [
        ServerSample(
            moment_s=at_s,
            utc_s=begun_s + at_s,
            engines=1,
            kv_use_share=use,
            preemptions_total=count,
            running=1,
            waiting=0,
        )
        for at_s, use, count in ((-1.0, 0.99, 0), (1.0, 0.4, 2), (2.0, 0.7, 3), (1000.0, 1.0, 9))
    ]
    row = block_row(judge_probe(facts, DEFAULT_SLO), samples, ran=3, start=1, requests_file="blocks/03-A.parquet")
    assert (row.ran, row.start, row.n, row.failed, row.unfinished) == (3, 1, 151, 1, 0)
    assert row.errors == {"HTTP 500: out of memory": 1}
    assert (row.tpot_mean_s, row.tpot_p50_s) == (pytest.approx(0.02), pytest.approx(0.02))
    assert (row.kv_use_max_share, row.preemptions) == (0.7, 1)
    assert row.requests_file == "blocks/03-A.parquet"


def test_a_block_of_a_server_without_counts_and_few_requests_has_nulls() -> None:
    row = block_row(judge_probe(probe_facts([record()]), DEFAULT_SLO), [], ran=1, start=0, requests_file="x")
    assert (row.kv_use_max_share, row.preemptions, row.tpot_p99_s, row.ttft_p99_s) == (None, None, None, None)


def test_a_row_shows_the_interval_that_carries_the_offset_and_keeps_the_other() -> None:
    row = effect_rows(compare(pairs([-0.05, -0.051, -0.049, -0.05]), seed=0, known_offset_sd=0.01, draws=20))[0]
    assert row.metric is ComparedMetric.TPOT_MEAN
    assert row.interval is not None
    assert row.instances_interval is not None
    assert row.interval[0] < row.instances_interval[0] < row.instances_interval[1] < row.interval[1]
    assert row.smallest_visible_share is not None


def test_a_comparison_of_nothing_has_rows_of_nulls() -> None:
    rows = effect_rows(compare([], seed=0))
    assert len(rows) == len(ComparedMetric)
    assert all((row.share, row.interval, row.a_value) == (None, None, None) for row in rows)


def test_trends_are_plain_shares() -> None:
    tpot, in_flight = trend_rows("B", Trend(Estimate(0.05, 0.001, 8), None))
    assert (tpot.arm, tpot.share, tpot.is_told) == ("B", 0.05, True)
    assert tpot.interval == (pytest.approx(0.05 - 0.0023, abs=1e-4), pytest.approx(0.05 + 0.0023, abs=1e-4))
    assert (in_flight.share, in_flight.interval, in_flight.is_told) == (None, None, False)


def test_an_estimate_without_an_interval_has_a_share() -> None:
    assert ends(None) == (None, None)
    assert ends(Estimate(0.0, None, 0)) == (0.0, None)
