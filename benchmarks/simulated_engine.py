"""What a simulated 120-second probe costs: the step model driven directly, and the whole probe under virtual time.

    python benchmarks/simulated_engine.py [--runs 7] [--rate 11]

The peer is the step model alone, measured in the same run; quote the medians and the ratio, not single times.
"""

import argparse
import statistics
import time

import numpy as np

from gates.slo import DEFAULT_SLO, drain_limit_s
from traffic.probe import run_probe
from traffic.schedule import Draw, Schedule, open_loop
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel
from traffic.virtual_time import run_virtual
from traffic.workload import CHAT_MIX


def schedule(rate_rps: float, repeat: int) -> Schedule:
    return open_loop(
        Draw(CHAT_MIX, seed=0, repeat=repeat),
        rate_rps=rate_rps,
        ramp_s=0.0,
        duration_s=120.0,
        drain_limit_s=lambda longest: drain_limit_s(DEFAULT_SLO, longest),
        text=None,
    )


def direct_s(plan: Schedule) -> float:
    """CPU seconds of the step model over the same requests."""
    inside = [each for each in plan.requests if each.in_cohort]
    due_s = np.array([each.due_s for each in inside])
    inputs = np.array([each.input_tokens for each in inside])
    outputs = np.array([each.output_tokens for each in inside])
    model = StepModel(EngineSettings(), 0)
    began_s = time.process_time()
    model.drive(due_s, inputs, outputs)
    return time.process_time() - began_s


def whole_s(plan: Schedule) -> float:
    """CPU seconds of the probe through the async engine, a task per request included."""

    async def probe() -> None:
        async with SimulatedEngine(StepModel(EngineSettings(), 0)) as engine:
            await run_probe(engine, plan)

    began_s = time.process_time()
    run_virtual(probe())
    return time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--rate", type=float, default=11.0)
    options = parser.parse_args()
    plans = [schedule(options.rate, repeat) for repeat in range(options.runs)]
    direct = statistics.median(direct_s(plan) for plan in plans)
    whole = statistics.median(whole_s(plan) for plan in plans)
    print(f"{options.runs} probes of 120 s at {options.rate:g} req/s, CPU seconds, medians")
    print(f"step model {direct:.3f}   whole probe {whole:.3f}   ratio {whole / direct:.1f}")


if __name__ == "__main__":
    main()
