"""Which machines a search runs on: simulated ones, or this host's GPUs and cores."""

from __future__ import annotations

import os

from slo_bench.moe.tune import Machines
from slo_bench.moe.tune_options import TuneOptions
from slo_bench.moe.tune_simulated import simulated_machines
from traffic.errors import EngineError

_OTHER_CORES = 2
"""One feeds the GPU, one conducts."""


def machines_for(options: TuneOptions) -> Machines:
    """The machines that the options name. Raises UsageError and EngineError in one line."""
    compilers = options.compilers or max(1, len(os.sched_getaffinity(0)) - _OTHER_CORES)
    if options.simulated:
        return simulated_machines(*options.layer(), compilers=compilers)
    raise EngineError("this build has no kernel bench for a GPU: --simulated rehearses the search without one")
