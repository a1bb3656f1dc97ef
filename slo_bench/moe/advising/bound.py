"""The most that a perfect MoE kernel could shorten a decode step, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from statistics import linear_regression

from pydantic import Field

from reports.kernels import KernelsDocument, KernelTime
from reports.run_directory import SCHEMA_VERSION, Document, SweepDocument
from slo_bench.moe.advising.steps import StepTimes
from slo_bench.moe.advising.truncated import Depth

WORTH_SHARE = 0.02
"""Below this no tuning is worth its trouble: a sweep's step is 2.5 %, and equal starts of a server differ so much."""

FAR_SHARE = 0.5
"""A kernel that reaches less of its limit than this, with many tokens, is far from what tile sizes alone can win."""

MANY_TOKENS = 64
SERVED_TOKENS = 16
"""A server under load decodes at least so many requests at once, where no run says how many."""

_MIN_RATES = 3


class Verdict(StrEnum):
    """What to do about the warning."""

    IGNORE = "ignore the warning"
    TUNE = "tune"
    CHANGE_BACKEND = "change the backend"


class BoundRow(Document):
    """One decode batch under one routing, seconds on the GPU.

    kernel_s: one layer's fused MoE as the server runs it. limit_s: the shortest time that the card allows it, by the
    data sheet's bandwidth and tensor cores, or by the measured bandwidth of a card that is not known. step_s: of the
    whole model, without logits and sampling; null where no model was measured. moe_share: of the step. most_share: by
    how much a perfect kernel would shorten it.
    """

    tokens: int
    routing: str
    kernel_s: float
    limit_s: float | None
    layer_s: float | None = None
    step_s: float | None = None
    moe_share: float | None = None
    most_share: float | None = None

    @property
    def reached_share(self) -> float | None:
        """How much of its limit the kernel reaches."""
        return None if self.limit_s is None else self.limit_s / self.kernel_s


class AdviceDocument(Document):
    """What `slo-bench advise --measure` found. source: whose configuration ran: heuristic, shipped or tuned.

    steps: layers -> seconds of a step, one value a round, for each tokens and routing. tpot_slope: of the logarithm of
    TPOT over that of the rate, in a sweep; null without one. took_s: without the imports.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    source: str
    verdict: Verdict
    sentence: str
    bounds: list[BoundRow]
    layers: int | None
    moe_layers: int | None
    context_tokens: int | None
    steps: list[dict[str, int | str | list[float]]]
    no_steps: str | None
    tpot_slope: float | None
    took_s: float
    imports_s: float
    kernels: KernelsDocument


def bounds_of(
    times: Sequence[KernelTime], source: str, steps: dict[tuple[int, str], StepTimes], depth: Depth | None
) -> list[BoundRow]:
    """A row for each batch that was timed with the server's own configuration."""
    rows = []
    for each in times:
        if each.source != source or each.median_s is None:
            continue
        share = each.limit_share if each.limit_share is not None else each.measured_share
        limit_s = None if share is None else share * each.median_s
        row = BoundRow(tokens=each.tokens, routing=each.routing, kernel_s=each.median_s, limit_s=limit_s)
        step = steps.get((each.tokens, each.routing))
        if step is not None and depth is not None:
            whole_s = step.whole_s(depth.layers)
            most = None if limit_s is None else depth.moe_layers * max(0.0, each.median_s - limit_s) / whole_s
            row = row.model_copy(
                update={
                    "layer_s": step.layer_s,
                    "step_s": whole_s,
                    "moe_share": depth.moe_layers * each.median_s / whole_s,
                    "most_share": most,
                }
            )
        rows.append(row)
    return rows


def tpot_slope(sweep: SweepDocument) -> float | None:
    """Of log mean TPOT over log rate, by least squares over the valid windows; None of fewer than three rates.

    A step that is shorter by a share also leaves fewer requests in flight, as a lower rate does.
    """
    seen = [
        (math.log(row.rate_rps), math.log(row.tpot_mean_s))
        for row in sweep.probes
        if row.is_valid and row.rate_rps and row.tpot_mean_s
    ]
    if len({rate for rate, _ in seen}) < _MIN_RATES:
        return None
    return linear_regression([rate for rate, _ in seen], [tpot for _, tpot in seen]).slope


def for_tpot(share: float, slope: float) -> float:
    """What a step shorter by a share makes of TPOT at one rate, as a share."""
    return 1.0 - float((1.0 - share) ** (1.0 + slope))


def judged(
    rows: Sequence[BoundRow], source: str, served: Sequence[int], searched: frozenset[int] = frozenset()
) -> tuple[Verdict, str]:
    """The verdict over batch sizes that the server runs (empty: not known), and it in a sentence.

    searched: batch sizes whose configurations a search through the whole space has chosen. The rule is in
    docs/method.md.
    """
    mine = [row for row in rows if row.tokens in served] or [row for row in rows if row.tokens >= SERVED_TOKENS] or rows
    sizes = ", ".join(str(size) for size in sorted({row.tokens for row in mine}))
    most = max((row.most_share for row in mine if row.most_share is not None), default=None)
    if most is not None and most < WORTH_SHARE:
        return Verdict.IGNORE, (
            f"Ignore the warning: at {sizes} tokens a perfect kernel would shorten a decode step by at most {most:.1%}."
        )
    reached = [row.reached_share for row in rows if row.tokens >= MANY_TOKENS and row.reached_share is not None]
    upper = "" if most is None else f" would shorten a decode step at {sizes} tokens by at most {most:.0%}, and"
    if source != "heuristic" and reached and max(reached) < FAR_SHARE:
        return Verdict.CHANGE_BACKEND, (
            f"Change the backend: with a {source} file the kernel reaches at most {max(reached):.0%} of its limit from "
            f"{MANY_TOKENS} tokens on, more than other tile sizes give."
        )
    if searched >= {row.tokens for row in mine}:
        return Verdict.CHANGE_BACKEND, (
            f"Change the backend, or leave it: a perfect kernel{upper or ' is not at hand, and'} slo-bench tune has "
            "searched the whole space for this file: what is left, other tile sizes do not give."
        )
    file = "in place of the heuristic" if source == "heuristic" else f"in place of the {source} file"
    return Verdict.TUNE, f"Tune: a perfect kernel{upper} slo-bench tune searches a file {file} in minutes."


def bound_lines(document: AdviceDocument) -> Iterator[str]:
    """Each batch in a line, and the verdict last."""
    for row in document.bounds:
        reached = "its limit is not known" if row.reached_share is None else f"{row.reached_share:.0%} of its limit"
        line = f"{row.tokens} tokens, {row.routing}: the kernel takes {row.kernel_s * 1e6:.1f} us a layer, {reached}"
        if row.step_s is not None and row.moe_share is not None:
            line += f"; {row.moe_share:.0%} of a step of {row.step_s * 1e3:.2f} ms"
        if row.most_share is not None:
            line += f", so a perfect one shortens it by at most {row.most_share:.1%}"
            if document.tpot_slope is not None:
                line += f" (TPOT at one rate: {for_tpot(row.most_share, document.tpot_slope):.1%})"
        yield line
    if document.no_steps is not None:
        yield f"the MoE share of a step is not measured: {document.no_steps}"
    took = f"{document.took_s:.0f} s after {document.imports_s:.0f} s of imports"
    yield f"measured with {_SOURCES[document.source]} in {took}"
    yield document.sentence


_SOURCES = {
    "heuristic": "the configuration that vLLM makes up without a file",
    "shipped": "the file that vLLM ships",
    "tuned": "the file in VLLM_TUNED_CONFIG_FOLDER",
}
