"""Which steps of a server fall on a far key."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.hosts.moe_proof import USUAL_SIZES
from slo_bench.moe.coverage import Band, bands_of, coverage, exactly, padded
from traffic.errors import UsageError
from traffic.server_facts import Histogram

SHIPPED = (96, 128, 256, 512, 1024)
"""The keys of a file that vLLM ships for an H100: what small batches run was tuned for 96 tokens."""


def test_small_batches_of_a_file_without_small_keys_are_far() -> None:
    found = coverage(SHIPPED, exactly([(1, 700), (40, 100), (64, 150), (1000, 50)]))
    assert [each.is_far for each in found.bands] == [True, True, False, False]
    assert found.bands[0].keys == found.bands[0].far_keys == (96,)
    assert found.steps == 1000
    assert found.far_share == (0.8, 0.8)


def test_a_band_that_is_far_in_part_gives_bounds() -> None:
    found = coverage(SHIPPED, [Band(33, 64, 60), Band(65, 128, 40)])
    assert [each.is_far for each in found.bands] == [None, False]
    assert found.far_share == (0.0, 0.6)


def test_nothing_is_far_from_the_usual_keys_but_what_is_beyond_them() -> None:
    found = coverage(USUAL_SIZES, [Band(1, 8192, 10), Band(8193, 16384, 5), Band(16385, None, 2)])
    assert [each.is_far for each in found.bands] == [False, True, True]
    assert found.bands[2].keys == (4096,)


def test_no_steps_have_no_share_and_no_key_is_an_error() -> None:
    assert coverage(SHIPPED, ()).far_share is None
    with pytest.raises(UsageError, match="no batch size"):
        coverage((), [Band(1, 1, 1)])


def test_steps_are_judged_by_the_rows_that_a_cuda_graph_pads_them_to() -> None:
    assert [padded(tokens, (1, 2, 4, 8)) for tokens in (1, 3, 8, 9)] == [1, 4, 8, 9]
    steps = exactly([(3, 10)])
    assert coverage((1, 8), steps).far_share == (1.0, 1.0)
    assert coverage((1, 8), steps, capture_sizes=(8,)).far_share == (0.0, 0.0)


def test_the_bands_of_vllms_histogram_end_at_the_token_budget() -> None:
    steps = Histogram((1.0, 8.0, 16.0), (30, 32, 32), 400.0, 40)
    assert bands_of(steps) == (Band(1, 1, 30), Band(2, 8, 2), Band(17, None, 8))
    assert bands_of(steps, most_tokens=2048)[-1] == Band(17, 2048, 8)


@given(
    st.lists(st.integers(1, 150), min_size=1, max_size=6, unique=True),
    st.lists(st.tuples(st.integers(1, 150), st.integers(1, 50)), min_size=1, max_size=8),
    st.lists(st.integers(1, 150), max_size=4),
)
@settings(max_examples=20)
def test_bounds_of_bands_hold_what_single_sizes_say(
    keys: list[int], sizes: list[tuple[int, int]], captured: list[int]
) -> None:
    exact = coverage(keys, exactly(sizes), capture_sizes=captured).far_share
    edges = (16.0, 64.0, 128.0)
    counts = tuple(sum(steps for tokens, steps in sizes if tokens <= edge) for edge in edges)
    steps = sum(steps for _, steps in sizes)
    banded = coverage(keys, bands_of(Histogram(edges, counts, 1.0, steps)), capture_sizes=captured).far_share
    assert exact is not None
    assert banded is not None
    assert banded[0] <= exact[0] == exact[1] <= banded[1]
