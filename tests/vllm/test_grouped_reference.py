import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.vllm

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT_S = 120
ROWS, COLUMNS, BLOCK = 64, 1024, 128
"""Of these rows about 20 blocks in 500 have values that lie exactly between two numbers of E4M3."""

PROGRAM = f"""
import json, sys, torch
from slo_bench.moe.grouped.gpu.measuring import _rounded
rows = torch.randn({ROWS}, {COLUMNS}, generator=torch.Generator().manual_seed(0)).bfloat16().float()
rows[0] = 0
json.dump([rows.tolist(), _rounded(rows).tolist()], sys.stdout)
"""


def e4m3_numbers() -> np.ndarray:
    """The numbers from 0 to 448, ascending; even places have an even last bit."""
    small = [mantissa * 2.0**-9 for mantissa in range(8)]
    normal = [(1 + mantissa / 8) * 2.0**exponent for exponent in range(-6, 9) for mantissa in range(8)]
    return np.array([*small, *normal[:-1]])


def rounded(rows: np.ndarray) -> np.ndarray:
    """By the format's rule: one rounding of the scale, one of the product, then to the nearest, ties to even."""
    numbers = e4m3_numbers()
    parts = rows.astype(np.float32).reshape(len(rows), -1, BLOCK)
    largest = np.abs(parts).max(axis=2, keepdims=True)
    scale = np.divide(np.float32(448), largest, out=np.ones_like(largest), where=largest > 0)
    scaled = np.abs(parts * scale).astype(np.float64)
    above = np.searchsorted(numbers, scaled).clip(1, len(numbers) - 1)
    to_low, to_high = scaled - numbers[above - 1], numbers[above] - scaled
    is_high = (to_high < to_low) | ((to_high == to_low) & (above % 2 == 0))
    nearest = np.where(is_high, numbers[above], numbers[above - 1]).astype(np.float32)
    return (np.copysign(nearest, parts) * (np.float32(1) / scale)).reshape(rows.shape)


def test_the_reference_rounds_activations_as_the_format_says_ties_too(vllm_python: Path) -> None:
    done = subprocess.run(
        [vllm_python, "-c", PROGRAM], cwd=CHECKOUT, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    rows, said = (np.array(each, dtype=np.float32) for each in json.loads(done.stdout))
    np.testing.assert_array_equal(said, rounded(rows))
