"""What FlashInfer expects of an expert's rows, against FlashInfer's own answers and the arithmetic of the report."""

from __future__ import annotations

import pytest

from slo_bench.moe.grouped.estimates import CORRECTED, SHIPPED, Branch, branch, corrected, flips_at, shipped, tile
from slo_bench.moe.shape import MoeShape

SHAPE = MoeShape(400, 2048, 4096, 6, ep_size=8)
H200_SMS, H20_SMS = 132, 78


def test_288_tokens_are_288_rows_to_the_shipped_estimate_and_5_to_the_corrected_one() -> None:
    assert (shipped(288), corrected(288, SHAPE)) == (288, 5)
    assert pytest.approx(4.32) == 288 * 6 / 400


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (66, 1), (67, 2), (133, 2), (134, 3), (2066, 31), (2067, 32)])
def test_the_corrected_estimate_rounds_up_and_is_at_least_one(tokens: int, rows: int) -> None:
    assert corrected(tokens, SHAPE) == rows


def test_the_branch_flips_at_32_rows_and_on_78_sms_at_64() -> None:
    assert [branch(rows, H200_SMS) for rows in (31, 32)] == [Branch.SWAPPED, Branch.NORMAL]
    assert [branch(rows, H20_SMS) for rows in (32, 63, 64)] == [Branch.SWAPPED, Branch.SWAPPED, Branch.NORMAL]


@pytest.mark.parametrize("sms", [H200_SMS, H20_SMS])
def test_the_flips_are_the_fewest_tokens_that_leave_swapab(sms: int) -> None:
    flips = flips_at(SHAPE, sms)
    for tokens, before, after in (
        (flips[SHIPPED], shipped(flips[SHIPPED] - 1), shipped(flips[SHIPPED])),
        (flips[CORRECTED], corrected(flips[CORRECTED] - 1, SHAPE), corrected(flips[CORRECTED], SHAPE)),
    ):
        assert tokens > 1
        assert (branch(before, sms), branch(after, sms)) == (Branch.SWAPPED, Branch.NORMAL)


@pytest.mark.parametrize(
    ("estimate", "sms", "words"),
    [
        # As the heuristic of FlashInfer 0.6.12 answers for 50 experts and n = 4,096, compiled and asked.
        (5, H200_SMS, "128x16"),
        (17, H200_SMS, "128x24"),
        (31, H200_SMS, "128x32"),
        (32, H200_SMS, "64x128"),
        (65, H200_SMS, "128x128"),
        (288, H200_SMS, "128x128"),
        (288, H20_SMS, "128x128"),
        (5, H20_SMS, "128x16"),
    ],
)
def test_tiles_are_those_of_flashinfer(estimate: int, sms: int, words: str) -> None:
    assert str(tile(estimate, 4096, 50, sms)) == words
