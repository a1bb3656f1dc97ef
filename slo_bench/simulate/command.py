"""`slo-bench simulate`: the simulated engine behind a real port."""

from __future__ import annotations

import sys

from slo_bench.config import SimulateOptions
from slo_bench.engines import simulated_settings
from slo_bench.simulate.answers import known_answers
from slo_bench.simulate.server import serve
from traffic.errors import UsageError


async def simulate(options: SimulateOptions) -> int:
    """Serve until a signal ends it. Raises UsageError for answers to know: only `--engine simulated` says them."""
    if known_answers(options.simulated) is not None:
        raise UsageError("--simulated answers goes with --engine simulated: the server's text is always the same words")

    def ready(url: str) -> None:
        sys.stderr.write(f"[SIMULATED] serving simulated-moe at {url}/v1; stop with Ctrl-C\n")

    await serve(
        simulated_settings(options.simulated), seed=options.seed, host=options.host, port=options.port, on_ready=ready
    )
    return 0
