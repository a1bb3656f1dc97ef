"""Which errors are a configuration's own, and which leave the GPU in doubt."""

from __future__ import annotations

import torch
from triton.errors import TritonError

CAUGHT = (RuntimeError, TritonError)
"""What a call may raise; `failure_of` tells whether to go on."""

_HARMLESS = (
    "PassManager::run failed",
    "does not dominate this use",
    "too many resources requested for launch",
    "out of resource",
    "failed to translate module to LLVM IR",
)
_LONGEST = 300


def failure_of(error: BaseException) -> str | None:
    """Why this configuration cannot run, in one line; None where the error may have broken more than it."""
    if isinstance(error, torch.OutOfMemoryError):
        return "CUDA out of memory"
    words = " ".join(str(error).split())
    if isinstance(error, TritonError) or any(word in words for word in _HARMLESS):
        return f"{type(error).__name__}: {words}"[:_LONGEST]
    return None
