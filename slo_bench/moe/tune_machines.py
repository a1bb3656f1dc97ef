"""Which machines a search runs on: simulated ones, or this host's GPUs and cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from slo_bench.hosts.gpu_memory import read_gpus
from slo_bench.moe.bench import Batch, KernelCompiler, Layer
from slo_bench.moe.gpu_bench import GpuPlace, start_bench, start_compiler
from slo_bench.moe.routing import draw, uniform
from slo_bench.moe.tune import Machines
from slo_bench.moe.tune_files import SIDE_FOLDER
from slo_bench.moe.tune_options import TuneOptions
from slo_bench.moe.tune_simulated import simulated_machines
from slo_bench.power.choice import Choice, chosen
from traffic.errors import EngineError

_OTHER_CORES = 2
"""One feeds the GPU, one conducts."""


def machines_for(options: TuneOptions) -> Machines:
    """The machines that the options name. Raises UsageError and EngineError in one line."""
    compilers = options.compilers or max(1, len(os.sched_getaffinity(0)) - _OTHER_CORES)
    if options.simulated:
        return simulated_machines(*options.layer(), compilers=compilers)
    shape, quantisation = options.layer()
    layer = Layer(shape, quantisation)
    # Which experts tokens go to makes no difference to a compiler.
    batches = [Batch("uniform", size, (draw(uniform(shape), shape, size, seed=0),)) for size in options.sizes()]
    place = GpuPlace(options.vllm_python or Path(sys.executable), options.folder() / SIDE_FOLDER / "logs")
    places = [replace(place, gpu=gpu) for gpu in gpus_here()]
    numbers = count()

    async def open_compiler() -> KernelCompiler:
        number = next(numbers)
        return await start_compiler(places[number % len(places)], layer, batches, f"compiler-{number}")

    opened = [partial(start_bench, each, f"bench-{number}") for number, each in enumerate(places)]
    return Machines(opened, open_compiler, compilers)


def gpus_here() -> Sequence[str]:
    """The UUIDs of the GPUs that a process of ours would see. Raises EngineError where there is none."""
    wanted = Choice(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
    gpus, reason = chosen(read_gpus(), wanted)
    if not gpus:
        raise EngineError(f"{reason.replace('the server', 'us')}: kernels are timed on a GPU; --simulated rehearses it")
    return [gpu.uuid for gpu in gpus]
