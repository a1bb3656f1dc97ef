"""Power and energy are compared as latency is: in pairs, with an interval and a claim that is no larger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from comparisons import document, pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.comparison import Claim, Pair, compare
from gates.effect import Finding, bracket_effect, conclude
from gates.spending import SpentMetric
from reports.compare_words import spent_lines, table_lines
from reports.effect_document import EffectDocument

POWER, JOULES, USD = SpentMetric.POWER_MEAN, SpentMetric.JOULES_PER_TOKEN, SpentMetric.USD_PER_MILLION


def spending(watts: Sequence[tuple[float | None, float | None]]) -> list[Pair]:
    """Pairs whose blocks drew so many watts at 2,000 tokens a second."""

    def drew(side: float | None) -> dict[str, float | None]:
        return {"power_mean_w": side, "joules_per_token": None if side is None else side / 2000}

    return [
        replace(pair, a=replace(pair.a, **drew(a)), b=replace(pair.b, **drew(b)))
        for pair, (a, b) in zip(pairs([0.0] * len(watts)), watts, strict=True)
    ]


def test_where_no_block_has_power_there_is_no_row_of_it() -> None:
    assert not [each for each in compare(pairs([0.0] * 4), seed=0, draws=50).effects if each.metric in SpentMetric]


def test_an_arm_that_draws_less_is_seen_to() -> None:
    measured = spending([(600.0, 541.0), (602.0, 540.0), (601.0, 542.0), (600.0, 540.0)])
    found = compare(measured, seed=0, draws=50)
    power, joules = found.effect(POWER), found.effect(JOULES)
    assert power.shown is not None
    assert power.shown.share == pytest.approx(-0.10, abs=0.002)
    assert (power.a_value, power.n_pairs, power.claim) == (pytest.approx(600.7, abs=0.1), 4, Claim.BETWEEN_INSTANCES)
    assert joules.b_value == pytest.approx(0.27, abs=0.001)
    assert found.primary.claim is Claim.BELOW_RESOLUTION


def test_noise_in_power_is_no_change_and_a_block_without_it_is_no_pair() -> None:
    found = compare(spending([(600.0, 612.0), (612.0, 600.0), (None, 604.0), (604.0, 603.0)]), seed=0, draws=50)
    assert (found.effect(POWER).n_pairs, found.effect(POWER).claim) == (3, Claim.BELOW_RESOLUTION)


def test_power_has_rows_in_the_document_with_its_own_units() -> None:
    written = document(spending([(600.0, 541.0), (602.0, 540.0), (601.0, 542.0), (600.0, 540.0)]))
    again = EffectDocument.model_validate_json(written.model_dump_json())
    assert [row.metric for row in again.effects[-2:]] == [POWER, JOULES]
    lines = table_lines(again)
    assert "601 W" in lines[-2]
    assert "0.300 J" in lines[-1]


def test_a_comparison_says_why_it_has_no_power_and_what_it_cost() -> None:
    bare = document(pairs([0.0] * 4))
    assert spent_lines(bare) == []
    told = bare.model_copy(update={"power_not_measured": "the engine is simulated", "usd_per_hour": 4.0, "usd": 1.5})
    assert spent_lines(told) == ["power: not measured: the engine is simulated", "cost: $1.50 at $4.00/hour"]


def test_a_price_is_known_as_well_as_the_brackets_of_the_capacities() -> None:
    found = bracket_effect(USD, (0.40, 0.41), (0.36, 0.37), at=(0.41, 0.37))
    assert found.share == pytest.approx(0.37 / 0.41 - 1)
    assert found.interval == (pytest.approx(0.36 / 0.41 - 1), pytest.approx(0.37 / 0.40 - 1))
    drift = bracket_effect(USD, (0.40, 0.41), (0.40, 0.41), at=(0.41, 0.41))
    assert conclude(found, drift) is Finding.BETWEEN_INSTANCES
    assert conclude(drift, drift) is Finding.BELOW_RESOLUTION
    assert Finding.BELOW_RESOLUTION.said == "no change seen, below resolution"
    assert Finding.BETWEEN_INSTANCES.said == "between these two server instances"


def test_an_open_bracket_leaves_the_effect_without_an_interval() -> None:
    found = bracket_effect(USD, (None, None), (0.36, 0.37), at=(0.41, 0.37))
    assert found.interval is None
    assert conclude(found, None) is Finding.TOO_FEW_PAIRS
    assert bracket_effect(USD, (0.4, 0.41), (None, None), at=(0.41, None)).share is None


PRICES = st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)).map(sorted)


@settings(max_examples=30)
@given(PRICES, PRICES)
def test_what_is_printed_lies_inside_the_interval(base: list[float], other: list[float]) -> None:
    found = bracket_effect(USD, (base[0], base[1]), (other[0], other[1]), at=(base[1], other[1]))
    assert found.interval is not None
    assert found.share is not None
    assert found.interval[0] <= found.share + 1e-9 * (1 + abs(found.share))
    assert found.share <= found.interval[1] + 1e-9 * (1 + abs(found.interval[1]))
