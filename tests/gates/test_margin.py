"""What margins prove, and that a failure or an open request never proves a pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from engines import failed, probe_facts, record
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.draw import Offered, features, long_draw
from gates.margin import UNSEEN, Proof, Values, WindowSample, bounds, proof, proofs, reading, window_sample
from gates.slo import parse_objective
from gates.verdict import Outcome, judge_probe
from traffic.arrivals import POISSON
from traffic.probe import Stop
from traffic.records import End, RequestRecord
from traffic.workload import CHAT_MIX

SLO = tuple(parse_objective(text) for text in ("ttft:p99:2000", "tpot:p99:50"))
TPOT = SLO[1]


def records(tpot_s: float, seconds: float = 120.0, spread: float = 0.1, seed: int = 0) -> list[RequestRecord]:
    """Ten requests a second whose latencies are log-normal."""
    noise = np.exp(np.random.default_rng(seed).normal(0.0, spread, int(seconds * 10)))
    return [record(index, tpot_s=tpot_s * float(each), ttft_s=0.2 * float(each)) for index, each in enumerate(noise)]


def window(members: Sequence[RequestRecord], stop: Stop = Stop.COMPLETE) -> WindowSample:
    return window_sample(judge_probe(probe_facts(members, stop=stop), SLO), None)


@pytest.mark.parametrize(
    ("tpot_s", "expected"), [(0.025, Proof.PASS), (0.0395, Proof.NOTHING), (0.0415, Proof.NOTHING), (0.06, Proof.FAIL)]
)
def test_a_wide_margin_proves_and_a_narrow_one_does_not(tpot_s: float, expected: Proof) -> None:
    assert proof(SLO, [window(records(tpot_s))]) is expected


def test_fewer_than_six_blocks_prove_nothing_and_two_windows_add_up() -> None:
    short = [window(records(0.025, seconds=60.0, seed=seed)) for seed in (1, 2)]
    assert proof(SLO, short[:1]) is None
    assert proof(SLO, short) is Proof.PASS
    assert proof(SLO, []) is None


def test_each_rate_is_proven_by_its_own_windows() -> None:
    slow = replace(window(records(0.06)), rate_rps=12.0)
    assert proofs(SLO, [slow, window(records(0.025))]) == {10.0: Proof.PASS, 12.0: Proof.FAIL}


def test_one_failed_request_takes_the_proof_of_a_pass_away() -> None:
    members = records(0.025)
    assert proof(SLO, [window([failed(members[0]), *members[1:]])]) is Proof.NOTHING


@pytest.mark.parametrize("stop", [Stop.LOST, Stop.GROWTH, Stop.ERRORS])
def test_a_window_that_ended_early_is_no_part_of_a_proven_pass(stop: Stop) -> None:
    good = window(records(0.025))
    early = replace(good, is_whole=False, outcome=Outcome.UNSTABLE if stop is Stop.GROWTH else Outcome.FAIL)
    assert proof(SLO, [good, early]) is Proof.NOTHING


@given(st.sets(st.integers(0, 1199), max_size=40), st.sampled_from([End.FAILED, End.TIMED_OUT, End.UNFINISHED]))
@settings(max_examples=5, deadline=None)
def test_more_failures_never_turn_into_a_proven_pass(which: set[int], end: End) -> None:
    members = records(0.0395)  # just not proven
    bad = [failed(each, end) if each.index in which else each for each in members]
    assert proof(SLO, [window(bad)]) is not Proof.PASS


@given(st.floats(0.1, 10.0))
@settings(max_examples=5, deadline=None)
def test_bounds_scale_with_the_latencies(factor: float) -> None:
    members = records(0.03)
    scaled = [
        replace(each, last_token_s=each.first_token_s + factor * (each.last_token_s - each.first_token_s))
        for each in members
        if each.first_token_s is not None and each.last_token_s is not None
    ]
    plain, found = (bounds([window(each).readings[1]]) for each in (members, scaled))
    assert plain is not None
    assert plain.lower is not None
    assert plain.upper is not None
    assert found is not None
    assert found.lower == pytest.approx(plain.lower + math.log(factor), abs=1e-6)
    assert found.upper == pytest.approx(plain.upper + math.log(factor), abs=1e-6)


def test_the_percentile_lies_between_its_bounds() -> None:
    found = bounds([window(records(0.03)).readings[1]])
    assert found is not None
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < math.log(0.03) + 0.1 * 2.326 < found.upper


def test_a_block_with_an_open_request_is_left_out() -> None:
    members = records(0.025)
    members[250] = replace(members[250], end=End.UNRESOLVED, last_token_s=None, ended_s=None)
    read = window(members).readings[1]
    assert read is not None
    assert read.blocks == 5


def test_each_failure_moves_the_percentile_up_until_it_falls_on_one() -> None:
    logs, blocks = np.arange(1000.0), np.arange(1000) // 500
    members = np.arange(1000)

    def log_value(failed: int) -> float | None:
        found = reading(TPOT, Values(members, blocks, logs, failed), None)
        assert found is not None
        return found.log_value

    unseen = UNSEEN * float(logs.std()) / math.sqrt(2)
    assert [log_value(failed) for failed in (0, 5, 10)] == pytest.approx(
        [each + unseen for each in (989.0, 994.0, 999.0)]
    )
    assert log_value(11) is None


def test_quick_requests_take_the_lowest_ranks() -> None:
    values = Values(np.arange(1000), np.arange(1000) // 500, np.arange(1000.0), quick=500)
    found = reading(TPOT, values, None)
    assert found is not None
    assert found.log_value == pytest.approx(984.0 + UNSEEN * float(values.logs.std()) / math.sqrt(2))


def test_windows_that_differ_by_more_than_their_blocks_explain_widen_the_bounds() -> None:
    slow, alike, quick = (
        window(records(tpot_s, seed=seed)).readings[1] for seed, tpot_s in enumerate((0.04, 0.04, 0.02))
    )
    widths = []
    for other in (alike, quick):
        found = bounds([slow, other])
        assert found is not None
        assert found.lower is not None
        assert found.upper is not None
        widths.append(found.upper - found.lower)
    assert widths[1] > 3 * widths[0]


def test_where_the_percentile_falls_on_failures_there_are_no_bounds() -> None:
    members = [failed(each) if each.index % 20 == 0 else each for each in records(0.025)]
    found = bounds([window(members).readings[1]])
    assert found is not None
    assert (found.lower, found.upper) == (None, None)


def test_equal_latencies_have_no_bounds() -> None:
    members = [record(index) for index in range(1200)]
    assert proof(SLO, [window(members)]) is None


def test_a_load_whose_draw_explains_the_latencies_is_known_better() -> None:
    """The more requests are under way, the slower: with a long draw of the load the bounds are closer together."""
    due_s = POISSON.due_s(10.0, 0, 0, 140.0)
    lengths = CHAT_MIX.draw(0, 0, len(due_s))
    inputs, outputs = (each.tolist() for each in (lengths.input_tokens, lengths.output_tokens))
    under_way = np.exp(features(Offered(due_s, lengths.input_tokens, lengths.output_tokens), 0.03)[:, 1])
    members = [
        record(
            index,
            due_s=float(due_s[index]),
            tpot_s=0.003 * float(under_way[index]) ** 0.5,
            output_tokens=outputs[index],
            input_tokens=inputs[index],
            in_cohort=due_s[index] >= 20.0,
        )
        for index in range(len(due_s))
    ]
    verdict = judge_probe(probe_facts(members, window={"window_start_s": 20.0}), SLO)
    plain, carried = (window_sample(verdict, draw).readings[1] for draw in (None, long_draw(CHAT_MIX, POISSON)))
    assert plain is not None
    assert carried is not None
    assert carried.block_sd < plain.block_sd


def test_an_invalid_window_says_nothing() -> None:
    invalid = judge_probe(probe_facts(records(0.025, seconds=2.0)), SLO)
    assert not invalid.is_valid
    with pytest.raises(ValueError, match="invalid window"):
        window_sample(invalid, None)
