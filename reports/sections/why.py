"""Why: what limited each arm, how many tokens its steps had, and what faster kernels should have brought."""

from __future__ import annotations

import math
from collections.abc import Iterator

from reports import numbers
from reports.arms import Arm, Experiment
from reports.evidence import evidence_of, measured
from reports.findings import limit_lines
from reports.kernels import KernelsDocument
from reports.markdown import bullets, code, escape, heading
from reports.page import Page
from reports.prediction import predicted_share
from reports.run_directory import SweepDocument
from reports.steps import step_sizes, steps_at
from reports.telling import timed_kernels


def why(page: Page) -> Iterator[str]:
    """Causes with their evidence."""
    experiment = page.experiment
    lines = limit_lines(experiment)
    for arm in experiment.arms:
        lines += [f"{code(arm.label)}: {escape('; '.join(found))}." for found in _evidence(arm.sweep) if found]
    for arm in experiment.arms:
        lines += _step_lines(experiment, arm)
    for arm, kernels in timed_kernels(experiment):
        lines += _prediction_lines(experiment, arm, kernels)
    yield heading("Why", 2)
    yield bullets(lines)


def _evidence(sweep: SweepDocument) -> list[list[str]]:
    """What was seen at the first failed rate, of the first window that failed there of the cause that is named."""
    at = (row for row in sweep.causes if row.rate_rps == sweep.first_failed_rps and row.kind == sweep.cause)
    first = next(at, None)
    return [] if first is None else [first.evidence, first.classes]


def _step_lines(experiment: Experiment, arm: Arm) -> Iterator[str]:
    steps = steps_at(arm, experiment.document.anchor_rps)
    if steps is None or steps.mean is None:
        return
    at = numbers.rate(experiment.document.anchor_rps)
    line = f"Tokens per step of {code(arm.label)} at {at}: mean {numbers.count(steps.mean)}"
    ends = steps.quantile_bounds(0.5)
    if ends is not None and math.isfinite(ends[1]):
        line += f", half of all steps have at most {numbers.count(ends[1])}"
    yield f"{line} ({numbers.count(steps.count)} steps, ramps among them)."


def _prediction_lines(experiment: Experiment, arm: Arm, kernels: KernelsDocument) -> Iterator[str]:
    """Predicted beside measured: they agree when the prediction lies in the interval, widened by the drift.

    The prediction is of steps at equal batch; fewer requests in flight shorten them further.
    """
    if arm is experiment.baseline or kernels.moe_share is None:
        return
    steps = steps_at(experiment.baseline, experiment.document.anchor_rps)
    if steps is None:
        return
    share, interval = measured(experiment, arm)
    reach = evidence_of(experiment, arm).reach_share or 0.0
    for routing in kernels.routings:
        predicted = predicted_share(step_sizes(steps, kernels.moe_share), kernels.gains(routing))
        if predicted is None:
            continue
        agrees = ""
        if interval is not None:
            is_inside = interval[0] - reach <= predicted <= interval[1] + reach
            agrees = ": they agree" if is_inside else ": they do not agree"
        yield (
            f"Predicted for {code(arm.label)} under {escape(routing)} routing, every step taken to be equally long and "
            f"the kernel {numbers.share(kernels.moe_share)} of it: {numbers.signed_share(predicted)} of the time of a "
            f"step; measured on mean TPOT {numbers.signed_share(share)} ({numbers.signed_interval(interval)}){agrees}."
        )
