"""Whether this machine lets a load have all its connections, asked before the load starts (R10)."""

from __future__ import annotations

from gates.capacity import rate_text
from gates.slo import drain_limit_s
from slo_bench.bench import Load
from traffic.file_limit import files_needed, rate_within
from traffic.workload import scaled_max


def file_warning(load: Load, rate_rps: float, limit: int) -> str | None:
    """What to do where the limit on open files may not carry that rate; None where it does.

    limit: files that one sending process may hold open. A request is held open for as long as the objectives allow at
    most; a server that keeps them needs far fewer.
    """
    _, output_tokens = scaled_max(load.workload, load.length_scale)
    longest_s = drain_limit_s(load.slo, output_tokens)
    if files_needed(rate_rps / load.workers, longest_s) <= limit:
        return None
    carried_rps = rate_within(limit, longest_s) * load.workers
    return (
        f"open files: the limit of {limit} is sure to carry {rate_text(carried_rps)} req/s when answers take as long "
        f"as the objectives allow; for {rate_text(rate_rps)} req/s raise the hard limit (ulimit -Hn)"
    )
