"""Pairs of blocks that are made up, and the document of a comparison of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gates.block_order import Order
from gates.comparison import Pair, compare
from gates.log_ratio import as_share
from gates.pooled import Cohort
from reports.effect_document import ArmRow, BlockRow, DifferenceRow, EffectDocument, PairRow, StartRow
from reports.effect_rows import effect_rows, ends
from reports.run_directory import WarmUp


def cohort(
    tpot_s: float = 0.030, ttft_s: float = 0.100, *, n: int = 60, seed: int = 0, good: int | None = None
) -> Cohort:
    """A block whose requests scatter by 10 % around these means."""
    spread = np.exp(0.1 * np.random.default_rng(seed).standard_normal(n))
    spread /= spread.mean()
    return Cohort(tpot_s * spread, ttft_s * spread, tpot_s, ttft_s, n if good is None else good, 10.0)


def pairs(
    ratios: Sequence[float], *, starts: Sequence[tuple[int, int]] | None = None, drift: float = 0.0, n: int = 60
) -> list[Pair]:
    """Pairs with these log ratios of B to A, A first and B first in turn; drift: of each block to the next."""
    made = []
    for number, ratio in enumerate(ratios):
        a_first = number % 2 == 0
        level = math.log(0.030) + 0.04 * math.sin(number)
        a, b = (level + drift * (2 * number + (is_first != a_first)) for is_first in (True, False))
        start_a, start_b = (0, 0) if starts is None else starts[number]
        made.append(
            Pair(
                number,
                cohort(math.exp(a), n=n, seed=number),
                cohort(math.exp(b + ratio), n=n, seed=number),
                a_first,
                start_a,
                start_b,
            )
        )
    return made


def block_row(**changes: Any) -> BlockRow:
    """The row of a good block."""
    values: dict[str, Any] = {
        "ran": 1,
        "start": 0,
        "n": 600,
        "failed": 0,
        "unfinished": 0,
        "errors": {},
        "tpot_mean_s": 0.030,
        "tpot_p50_s": 0.029,
        "tpot_p99_s": 0.045,
        "ttft_mean_s": 0.1,
        "ttft_p50_s": 0.09,
        "ttft_p99_s": 0.3,
        "goodput_rps": 10.0,
        "offered_rps": 10.0,
        "send_lag_p99_s": 0.001,
        "output_tokens_mean": 211.0,
        "kv_use_max_share": 0.5,
        "preemptions": 0,
        "grows": False,
        "invalid_reasons": [],
        "flags": [],
        "started_utc": "2026-12-02T00:00:00+00:00",
        "load_s": 93.0,
        "requests_file": "blocks/01-A.parquet",
    }
    return BlockRow(**{**values, **changes})


def arm_row(label: str, changes: Sequence[str] = (), starts: int = 1, **more: Any) -> ArmRow:
    """An arm on a vLLM of ours."""
    warm = WarmUp(is_warm=True, rate_rps=12.5, block_s=30.0, tpot_mean_s=[0.032, 0.031])
    return ArmRow(
        label=label,
        engine=more.get("engine", "vllm"),
        changes=list(changes),
        starts=[
            StartRow(start=start, directory=f"starts/{label}-{start + 1}", model="m", version="0.32.0", warm_up=warm)
            for start in range(starts)
        ],
    )


def document(measured: Sequence[Pair], known_offset_sd: float | None = None, **changes: Any) -> EffectDocument:
    """The document of a comparison of these pairs."""
    compared = compare(measured, seed=0, known_offset_sd=known_offset_sd, draws=200)
    mean = compared.mean
    order, order_interval = ends(None if mean is None else mean.order)
    offset_sd = None if mean is None else mean.offset_sd
    values: dict[str, Any] = {
        "outcome": "concluded",
        "reasons": [],
        "is_simulated": False,
        "a": arm_row("A"),
        "b": arm_row("B", ["kv_cache_dtype=fp8"]),
        "placement": "coresident",
        "order": Order.ABBA,
        "seed": 0,
        "rate_rps": 10.0,
        "concurrency": None,
        "workload": "chat-mix",
        "arrivals": "Poisson arrivals",
        "length_scale": 1.0,
        "slo": ["ttft:p99:2000", "tpot:p99:50"],
        "ramp_s": 15.0,
        "window_s": 60.0,
        "load_s": 186.0 * len(measured),
        "pairs": [
            PairRow(
                number=pair.number,
                a_first=pair.a_first,
                a=block_row(start=pair.start_a, tpot_mean_s=pair.a.tpot_mean_s),
                b=block_row(start=pair.start_b, tpot_mean_s=pair.b.tpot_mean_s),
            )
            for pair in measured
        ],
        "discarded": [],
        "effects": effect_rows(compared),
        "starts_per_arm": compared.starts_per_arm,
        "pair_sd_share": None if mean is None or mean.pair_sd is None else as_share(mean.pair_sd),
        "offset_share": None if offset_sd is None else as_share(offset_sd),
        "offset_source": None if offset_sd is None else "given" if known_offset_sd else "measured",
        "resolution_share": 0.01,
        "pairs_needed": None if mean is None else mean.pairs_needed(math.log1p(0.01)),
        "starts_needed": None,
        "order_share": order,
        "order_interval": order_interval,
        "trends": [],
        "differences": [DifferenceRow(what="command --kv-cache-dtype", a=None, b="fp8")],
        "unproven": [],
        "faults": [],
        "command": ["slo-bench", "compare", "--request-rate", "10"],
        "started_utc": "2026-12-02T00:00:00+00:00",
        "ended_utc": "2026-12-02T00:30:00+00:00",
    }
    return EffectDocument(schema_version=1, **{**values, **changes})
