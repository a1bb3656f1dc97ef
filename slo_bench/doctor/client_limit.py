"""What this client can send of a load, as `slo-bench doctor` measured it on this host."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slo_bench.bench import Load
from slo_bench.doctor.ceiling import ClientLimit
from slo_bench.doctor.document import doctor_path, find_doctor, this_client
from slo_bench.engine_options import EngineOptions
from traffic.randomness import CHUNK

NOT_MEASURED = "client ceiling not measured: slo-bench doctor"


def client_limit(options: EngineOptions, load: Load, say: Callable[[str], None]) -> ClientLimit | None:
    """None for the simulated engine, which no client stands before, and, with a notice, where no doctor ever ran.

    None for workers on other machines too: their ceiling is not this one's.
    """
    if options.engine_kind() == "simulated" or load.ray_address is not None:
        return None
    found = find_doctor(doctor_path(os.environ, Path.home()), this_client())
    ceiling = None if found is None else found.ceiling
    if ceiling is None:
        say(NOT_MEASURED)
        return None
    return ClientLimit(ceiling, mean_answer_tokens(load), load.workers)


def mean_answer_tokens(load: Load) -> float:
    """The mean length of the answers that a load asks for."""
    return float(load.workload.draw(load.seed, 0, CHUNK, load.length_scale).output_tokens.mean())
