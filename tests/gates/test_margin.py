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

from gates.margin import Proof, WindowSample, bounds, proof, proofs, sample_of, window_sample
from gates.slo import parse_objective
from gates.verdict import Outcome, judge_probe
from traffic.probe import Stop
from traffic.records import End, RequestRecord

SLO = tuple(parse_objective(text) for text in ("ttft:p99:2000", "tpot:p99:50"))
TPOT = SLO[1]


def records(tpot_s: float, seconds: float = 120.0, spread: float = 0.1, seed: int = 0) -> list[RequestRecord]:
    """Ten requests a second whose latencies are log-normal."""
    noise = np.exp(np.random.default_rng(seed).normal(0.0, spread, int(seconds * 10)))
    return [record(index, tpot_s=tpot_s * float(each), ttft_s=0.2 * float(each)) for index, each in enumerate(noise)]


def window(members: Sequence[RequestRecord], stop: Stop = Stop.COMPLETE) -> WindowSample:
    return window_sample(judge_probe(probe_facts(members, stop=stop), SLO))


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
    at = probe_facts(members).window
    plain, found = (bounds(sample_of(TPOT, each, at), TPOT) for each in (members, scaled))
    assert plain is not None
    assert found is not None
    assert plain.upper is not None
    assert found.lower == pytest.approx(plain.lower + math.log(factor), abs=1e-6)
    assert found.upper == pytest.approx(plain.upper + math.log(factor), abs=1e-6)


def test_the_percentile_lies_between_its_bounds() -> None:
    found = bounds(window(records(0.03)).samples[1], TPOT)
    assert found is not None
    assert found.upper is not None
    assert found.lower < math.log(0.03) + 0.1 * 2.326 < found.upper


def test_a_block_with_an_open_request_is_left_out() -> None:
    members = records(0.025)
    members[250] = replace(members[250], end=End.UNRESOLVED, last_token_s=None, ended_s=None)
    sample = sample_of(TPOT, members, probe_facts(members).window)
    assert (sample.block_count, len(sample.logs)) == (5, 1000)


def test_equal_latencies_have_no_bounds() -> None:
    members = [record(index) for index in range(1200)]
    assert proof(SLO, [window(members)]) is None


def test_an_invalid_window_says_nothing() -> None:
    invalid = judge_probe(probe_facts(records(0.025, seconds=2.0)), SLO)
    assert not invalid.is_valid
    with pytest.raises(ValueError, match="invalid window"):
        window_sample(invalid)
