"""How far the results of configurations are from float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .failures import CAUGHT, failure_of
from .layer import GpuLayer, Input, overridden


def check(layer: GpuLayer, *, cases: Sequence[Mapping[str, Any]], tell: Callable[[int], None]) -> list[dict[str, Any]]:
    """For each case {"error": share or null, "failure": text or null}, in the order given; a batch's reference once."""
    answers: list[dict[str, Any]] = [{} for _ in cases]
    batches: dict[tuple[int, str], list[int]] = {}
    for number, case in enumerate(cases):
        batches.setdefault((case["tokens"], case["routing"]), []).append(number)
    done = 0
    for name, numbers in batches.items():
        input_ = layer.inputs[name]
        reference = layer.reference(input_)
        for number in numbers:
            answers[number] = _checked(layer, input_, reference, cases[number]["entry"])
            done += 1
            tell(done)
    return answers


def _checked(layer: GpuLayer, input_: Input, reference: torch.Tensor, entry: Mapping[str, int]) -> dict[str, Any]:
    try:
        with overridden(entry):
            result = layer.call(input_, 0).float()
        size = float(reference.double().norm())
        error = float((result - reference).double().norm()) / size if size else float(result.double().norm())
    except CAUGHT as caught:
        failure = failure_of(caught)
        if failure is None:
            raise
        return {"error": None, "failure": failure}
    if not math.isfinite(error):
        return {"error": None, "failure": "the result is not finite"}
    return {"error": error, "failure": None}
