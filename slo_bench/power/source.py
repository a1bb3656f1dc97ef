"""From options to where a server's power is read."""

from __future__ import annotations

import os

from slo_bench.engine_options import EngineOptions
from slo_bench.power.choice import ALL, Choice
from slo_bench.power.measuring import SIMULATED, PowerSource
from slo_bench.power.telemetry import READER
from traffic.errors import UsageError


def power_source(options: EngineOptions) -> PowerSource:
    """Where to read, or why nowhere. Raises UsageError for GPUs of this machine beside a server on another one."""
    from slo_bench.hosts.attached import is_loopback  # noqa: PLC0415 - its library is for those who use a server

    kind = options.engine_kind()
    if kind == "simulated":
        return PowerSource(reason=SIMULATED)
    is_ours = kind == "vllm"
    named = tuple(options.power_gpu)
    if named and options.dcgm_url is None and not is_ours and not is_loopback(options.base_url or ""):
        raise UsageError(f"--power-gpu names GPUs of this machine, and {options.base_url} is another: use --dcgm-url")
    if not (named or options.dcgm_url is not None or is_ours):
        return PowerSource(
            reason="the server was not started here: give --dcgm-url, or --power-gpu where it runs on this machine"
        )
    wanted = Choice(named=named, dcgm_url=options.dcgm_url)
    if not named and options.dcgm_url is None:
        env = {**os.environ, **dict(pair.split("=", 1) for pair in options.server_env)}
        wanted = Choice(env.get("CUDA_VISIBLE_DEVICES"), env.get("CUDA_DEVICE_ORDER"))
    return PowerSource(
        (*READER, *wanted.arguments()),
        by_memory=is_ours and not named,
        counts_all=not named or ALL in named,
        is_running=not is_ours,
    )
