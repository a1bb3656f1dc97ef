"""What may take the default's place, and what may not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slo_bench.moe.choice import ROUNDS, Final, judged, middle_of, ranked, ratio
from slo_bench.moe.space import KernelConfig
from traffic.randomness import stream

DEFAULT = KernelConfig(16, 128, 128, 1, 4, 3)
A, B = KernelConfig(16, 64, 128, 1, 4, 3), KernelConfig(16, 64, 128, 1, 4, 4)
RANDOM = stream("test-choice")


def final(config: KernelConfig, uniform: float, elsewhere: float, error: float = 0.01, noise: float = 0.01) -> Final:
    def times(time_s: float) -> tuple[float, ...]:
        return tuple(time_s * (1 + noise * RANDOM.standard_normal(ROUNDS)))

    return Final(config, {"uniform": times(uniform), "concentrated": times(elsewhere)}, error)


def test_a_faster_one_that_is_nowhere_slower_takes_the_defaults_place() -> None:
    (found,) = ranked(final(DEFAULT, 1.0, 1.0), [final(A, 0.9, 1.0)])
    assert found.config == A
    assert found.gain.share == pytest.approx(-0.1, abs=0.01)


@pytest.mark.parametrize(("uniform", "elsewhere"), [(0.8, 1.6), (0.8, 1.03), (1.0, 0.8), (1.1, 0.8)])
def test_slower_under_one_routing_or_not_faster_under_the_first_leaves_the_default(
    uniform: float, elsewhere: float
) -> None:
    assert ranked(final(DEFAULT, 1.0, 1.0), [final(A, uniform, elsewhere)]) == ()


def test_what_noise_hides_is_no_evidence_of_not_being_slower() -> None:
    assert ranked(final(DEFAULT, 1.0, 1.0, noise=0.1), [final(A, 0.7, 1.0, noise=0.1)]) == ()


def test_between_equally_fast_ones_the_other_routings_decide() -> None:
    found = ranked(
        final(DEFAULT, 1.0, 1.0, noise=1e-4), [final(A, 0.9, 1.0, noise=1e-4), final(B, 0.902, 0.8, noise=1e-4)]
    )
    assert [each.config for each in found] == [B, A]


def test_a_wrong_result_or_a_missing_time_is_never_chosen() -> None:
    default = final(DEFAULT, 1.0, 1.0)
    assert judged(default, final(A, 0.5, 0.5, error=0.03)) is None
    assert judged(default, Final(A, {**final(A, 0.5, 0.5).times_s, "concentrated": ()})) is None


def test_drift_that_both_share_is_not_in_the_ratio() -> None:
    drift = np.linspace(1, 2, ROUNDS)
    found = ratio(tuple(drift), tuple(0.9 * drift))
    assert found.share == pytest.approx(-0.1)
    assert found.high == pytest.approx(-0.1)


def test_the_interval_of_the_median_covers_it_as_often_as_it_says() -> None:
    random = stream("test-choice-coverage")
    inside = 0
    for _ in range(400):
        _, low, high = middle_of(list(np.exp(random.standard_normal(ROUNDS))))
        assert low is not None
        assert high is not None
        inside += low <= 1 <= high
    assert inside >= 0.94 * 400


def test_five_rounds_have_no_interval_and_six_do() -> None:
    assert middle_of([1.0, 2, 3, 4, 5]) == (3.0, None, None)
    assert middle_of([1.0, 2, 3, 4, 5, 6]) == (3.5, 1.0, 6.0)
    assert middle_of([]) == (None, None, None)
    assert not ratio([1.0] * 5, [0.5] * 5).is_faster
    assert math.isclose(ratio([1.0] * 5, [0.5] * 5).share, -0.5)
