"""`slo-bench simulate`: the simulated engine behind a real port."""

from __future__ import annotations

import sys

from slo_bench.config import SimulateOptions
from slo_bench.engines import simulated_settings
from slo_bench.simulate.server import serve


async def simulate(options: SimulateOptions) -> int:
    """Serve until a signal ends it."""

    def ready(url: str) -> None:
        sys.stderr.write(f"[SIMULATED] serving simulated-moe at {url}/v1; stop with Ctrl-C\n")

    await serve(
        simulated_settings(options.simulated), seed=options.seed, host=options.host, port=options.port, on_ready=ready
    )
    return 0
