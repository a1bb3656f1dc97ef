"""Lengths: the chat mix is what its source says, and every draw is the same for every arm."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.errors import UsageError
from traffic.prompts import TextKey, TokenRatio
from traffic.workload import CHAT_MIX, fixed_lengths, scaled_max

DATA = Path(os.environ.get("SLO_BENCH_DATA", Path(__file__).parents[3] / "shared" / "data"))
MANY = CHAT_MIX.draw(0, 0, 200_000)


def told(name: str) -> list[float]:
    """Mean or median of (prompt, answer), as the source string of the mix tells them."""
    return [float(text.replace(",", "")) for text in re.findall(rf"{name} ([\d,]+)", CHAT_MIX.source)]


def test_the_chat_mix_has_the_means_and_medians_of_its_source() -> None:
    lengths = (MANY.input_tokens, MANY.output_tokens)
    assert [float(each.mean()) for each in lengths] == pytest.approx(told("mean"), rel=0.02)
    assert [float(np.median(each)) for each in lengths] == pytest.approx(told("median"), rel=0.02)


def test_the_chat_mix_has_the_quantiles_of_the_trace() -> None:
    path = DATA / "azure_llm_conv_2023.csv"
    if not path.exists():
        pytest.skip(f"{path} is absent; SLO_BENCH_DATA names the folder")
    with path.open(newline="") as lines:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(lines)]
    trace = np.array(rows)
    assert len(trace) == 19_366
    shares = [0.10, 0.25, 0.50, 0.75, 0.90, 0.95]
    for column, drawn in enumerate((MANY.input_tokens, MANY.output_tokens)):
        assert np.quantile(drawn, shares) == pytest.approx(np.quantile(trace[:, column], shares), rel=0.25)


def test_classes_come_in_their_shares() -> None:
    shares = np.bincount(MANY.kinds) / len(MANY.kinds)
    assert shares == pytest.approx([each.share for each in CHAT_MIX.classes], abs=0.005)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), repeat=st.integers(0, 9), few=st.integers(0, 5000), more=st.integers(0, 9000))
def test_the_first_requests_are_the_same_however_many_are_drawn(seed: int, repeat: int, few: int, more: int) -> None:
    short, long = CHAT_MIX.draw(seed, repeat, few), CHAT_MIX.draw(seed, repeat, few + more)
    assert len(short.kinds) == few
    for one, other in zip(as_arrays(short), as_arrays(long), strict=True):
        assert np.array_equal(one, other[:few])


def as_arrays(lengths: object) -> list[npt.NDArray[np.int64]]:
    return [getattr(lengths, name) for name in ("kinds", "input_tokens", "output_tokens")]


def test_another_seed_or_repeat_is_another_draw() -> None:
    base = CHAT_MIX.draw(0, 0, 500).input_tokens
    assert not np.array_equal(base, CHAT_MIX.draw(1, 0, 500).input_tokens)
    assert not np.array_equal(base, CHAT_MIX.draw(0, 1, 500).input_tokens)


def test_changing_one_class_moves_no_other_request() -> None:
    classes = (replace(CHAT_MIX.classes[0], output_median_tokens=500.0), *CHAT_MIX.classes[1:])
    changed = replace(CHAT_MIX, classes=classes).draw(0, 0, 4000)
    base = CHAT_MIX.draw(0, 0, 4000)
    others = base.kinds != 0
    assert np.array_equal(base.kinds, changed.kinds)
    assert np.array_equal(base.input_tokens, changed.input_tokens)
    assert np.array_equal(base.output_tokens[others], changed.output_tokens[others])
    assert (base.output_tokens[~others] != changed.output_tokens[~others]).any()


@settings(deadline=None, max_examples=30)
@given(scale=st.floats(0.001, 3.0), seed=st.integers(0, 99))
def test_no_length_is_below_one_token_or_above_the_scaled_maximum(scale: float, seed: int) -> None:
    lengths = CHAT_MIX.draw(seed, 0, 3000, scale)
    most_in, most_out = scaled_max(CHAT_MIX, scale)
    assert lengths.input_tokens.min() >= 1
    assert lengths.output_tokens.min() >= 1
    assert lengths.input_tokens.max() <= most_in
    assert lengths.output_tokens.max() <= most_out


def test_the_length_scale_multiplies_every_length() -> None:
    whole, half = CHAT_MIX.draw(0, 0, 2000), CHAT_MIX.draw(0, 0, 2000, 0.5)
    assert np.abs(half.input_tokens - whole.input_tokens / 2).max() <= 1
    assert np.abs(half.output_tokens - whole.output_tokens / 2).max() <= 1


def test_fixed_lengths_are_all_alike() -> None:
    lengths = fixed_lengths(512, 128).draw(5, 1, 1000)
    assert set(lengths.input_tokens.tolist()) == {512}
    assert set(lengths.output_tokens.tolist()) == {128}


@pytest.mark.parametrize(("input_tokens", "output_tokens"), [(0, 10), (10, 0), (-1, 10)])
def test_a_fixed_length_below_one_token_is_refused(input_tokens: int, output_tokens: int) -> None:
    with pytest.raises(UsageError, match="at least 1 token"):
        fixed_lengths(input_tokens, output_tokens)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_length_scale_that_is_not_positive_is_refused(scale: float) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        CHAT_MIX.draw(0, 0, 10, scale)


def test_a_part_of_the_lengths_is_those_requests_alone() -> None:
    whole = CHAT_MIX.draw(0, 0, 50, 0.5)
    part = whole.part(10, 13)
    assert part.input_tokens.tolist() == whole.input_tokens[10:13].tolist()
    assert (len(part.kinds), part.rows, part.length_scale) == (3, None, 0.5)
    numbered = replace(whole, rows=np.arange(50)).part(10, 13)
    assert numbered.rows is not None
    assert numbered.rows.tolist() == [10, 11, 12]


def test_the_mix_draws_what_it_always_drew() -> None:
    lengths = CHAT_MIX.draw(0, 0, 4)
    assert lengths.kinds.tolist() == [0, 0, 3, 1]
    assert lengths.input_tokens.tolist() == [261, 136, 2030, 960]
    assert lengths.output_tokens.tolist() == [51, 37, 513, 46]
    key = TextKey(seed=0, start=0, rate_rps=8.0, repeat=0)
    assert CHAT_MIX.texts(lengths, TokenRatio(), key)[0][0].text.startswith(
        "Loose farmers weighed the brittle catalogue every Monday,"
    )
