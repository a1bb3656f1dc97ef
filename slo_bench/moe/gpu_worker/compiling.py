"""Compile what calls would launch, and launch nothing: the binaries go into Triton's cache on disk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from triton.runtime.jit import JITFunction

from .facts import max_shared_bytes
from .failures import CAUGHT, failure_of
from .layer import GpuLayer, overridden


def compile_entry(layer: GpuLayer, *, entry: Mapping[str, int]) -> dict[str, Any]:
    """{"took_s": seconds, "failure": text or null} of one configuration, for every batch of the layer.

    Batches differ in what the compiler may rely on: sizes that 16 divides, tokens that are too few to be sorted.
    """
    begun_s = time.perf_counter()
    failure = None
    try:
        with overridden(entry), _compiled_only() as kernels:
            for input_ in layer.inputs.values():
                layer.call(input_, 0)
    except CAUGHT as error:
        failure = failure_of(error)
        if failure is None:
            raise
    else:
        # What a launch would refuse: it is only then that Triton looks.
        shared, most = max((kernel.metadata.shared for kernel in kernels), default=0), max_shared_bytes()
        if shared > most:
            failure = f"out of resource: shared memory, required: {shared}, hardware limit: {most}"
    return {"took_s": time.perf_counter() - begun_s, "failure": failure}


@contextmanager
def _compiled_only() -> Iterator[list[Any]]:
    """Every Triton kernel that is called inside is compiled and not launched; what they are."""
    launch = JITFunction.run
    kernels: list[Any] = []

    def compiled(self: Any, *args: Any, **options: Any) -> Any:
        kernel = launch(self, *args, **{**options, "warmup": True})
        if kernel is not None:
            kernels.append(kernel)
        return kernel

    JITFunction.run = compiled
    try:
        yield kernels
    finally:
        JITFunction.run = launch
