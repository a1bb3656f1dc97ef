"""The options of each command, and what they resolve to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import field_validator, model_validator

from gates.slo import DEFAULT_SLO, Metric, Objective, parse_objective
from slo_bench.accuracy.options import SweepGateOptions
from slo_bench.engine_options import ENGINE, LOAD, POWER, option
from slo_bench.modes import Mode, mode_named
from slo_bench.options import Options, StringList
from slo_bench.ray_workers import NO_RAY, has_ray
from slo_bench.search import SearchSettings
from slo_bench.traffic_options import TrafficOptions
from traffic.errors import UsageError

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")

_SLO, _SEARCH, _RUN = "objectives", "search", "run"


class LoadOptions(TrafficOptions):
    """What is sent, and what it must achieve."""

    seed: int = option(0, "of arrivals, lengths and text; 0 is a seed", group=LOAD, metavar="N", ge=0)
    slo: StringList = option(
        [],
        "objective METRIC:pPERCENTILE:MILLISECONDS, repeatable; metrics ttft, tpot, itl, e2e "
        "(default: ttft:p99:2000 tpot:p99:50)",
        group=_SLO,
        metavar="OBJECTIVE",
    )
    ttft_p99_ms: float | None = option(None, "short for --slo ttft:p99:MS", group=_SLO, metavar="MS", gt=0)
    tpot_p99_ms: float | None = option(None, "short for --slo tpot:p99:MS", group=_SLO, metavar="MS", gt=0)

    load_workers: int = option(
        1, "processes of this machine that send one load; more where one of them is late", group=LOAD, metavar="N", ge=1
    )
    ray_address: str | None = option(
        None,
        "send from the nodes of this Ray cluster instead, one core for each of --load-workers; needs slo-bench[ray]",
        group=LOAD,
        metavar="auto|HOST:PORT",
    )
    usd_per_hour: float | None = option(
        None, "price of the whole machine: dollars per run, per million output tokens", group=POWER, metavar="USD", gt=0
    )

    @model_validator(mode="after")
    def _can_be_shared(self) -> LoadOptions:
        if self.load_workers > 1 and self.engine == "simulated":
            raise ValueError("--load-workers goes with a server: the simulated engine lives in one process")
        if self.ray_address is not None and self.engine == "simulated":
            raise ValueError("--ray-address goes with a server: the simulated engine lives in this process")
        if self.ray_address is not None and not has_ray():
            raise ValueError(NO_RAY)
        return self

    @field_validator("ray_address")
    @classmethod
    def _cluster(cls, address: str | None) -> str | None:
        if address is not None and address != "auto" and not _HOST_PORT.fullmatch(address):
            raise ValueError("give auto, or the cluster's HOST:PORT, like 10.0.0.1:6379")
        return address

    def objectives(self) -> tuple[Objective, ...]:
        """The SLO: given objectives stand alone; a short form replaces the default of its metric.

        Raises UsageError for a malformed or doubled objective.
        """
        given = [parse_objective(text) for text in self.slo]
        for metric, limit_ms in ((Metric.TTFT, self.ttft_p99_ms), (Metric.TPOT, self.tpot_p99_ms)):
            if limit_ms is not None:
                given.append(parse_objective(f"{metric.value}:p99:{limit_ms:g}"))
        metrics = [objective.metric for objective in given]
        if len(set(metrics)) < len(metrics):
            raise UsageError("two objectives limit the same metric; give one of them")
        if self.slo:
            return tuple(given)
        return tuple(each for each in DEFAULT_SLO if each.metric not in metrics) + tuple(given)


class SweepOptions(LoadOptions, SweepGateOptions):
    """Options of `slo-bench sweep`."""

    label: str | None = option(None, "name of the run (default: sweep-N)", group=_RUN)
    mode: Literal["smoke", "quick", "full"] = option(
        "quick",
        "smoke: minutes, p90, not a measurement; quick: the published method; full: 300-second probes, three repeats",
        group=_RUN,
    )
    strategy: Literal["published", "economical"] | None = option(
        None,
        "published: windows of one length, all must pass; economical: short ones far from the boundary, windows of a "
        "rate judged together (mode smoke and quick: published, full: economical)",
        group=_SEARCH,
    )
    sweep_start: float = option(8.0, "first request rate, req/s", group=_SEARCH, metavar="RATE")
    sweep_growth: float = option(1.25, "factor from rate to rate while all pass", group=_SEARCH, metavar="FACTOR")
    max_request_rate: float | None = option(
        None, "highest rate that the search may try (default: 16 x the start)", group=_SEARCH, metavar="RATE"
    )
    resolution: float | None = option(
        None, "stop when first fail / last pass - 1 is at most this (mode: 0.03)", group=_SEARCH, metavar="SHARE"
    )
    repeats: int | None = option(
        None, "further windows at the last pass and the first fail (mode: 2)", group=_SEARCH, metavar="N", ge=0
    )
    duration: float | None = option(
        None, "seconds of each measured window (mode: 120)", group=_SEARCH, metavar="SECONDS", gt=0
    )
    ramp: float | None = option(
        None, "seconds of the same load before each window (mode: 20)", group=_SEARCH, metavar="SECONDS", ge=0
    )
    max_minutes: float | None = option(None, "end the search after this time", group=_RUN, metavar="N", gt=0)
    runs_dir: Path = option(Path("runs"), "where run directories are made", group=_RUN, metavar="DIR")
    resume: bool = option(
        default=False, description="go on with the run --label where it stopped; give the same options", group=_RUN
    )
    dry_run: bool = option(
        default=False, description="print what would be measured and how long, then stop", group=_RUN
    )
    yes: bool = option(default=False, description="do not ask before loading a host that is not this one", group=_RUN)

    @field_validator("label")
    @classmethod
    def _one_name(cls, label: str | None) -> str | None:
        if label is not None and not LABEL.fullmatch(label):
            raise ValueError("a label is one name of letters, digits, '.', '_' and '-'")
        return label

    @model_validator(mode="after")
    def _names_what_goes_on(self) -> SweepOptions:
        if self.resume and self.label is None:
            raise ValueError("--resume needs the --label of the run that goes on")
        return self

    def the_mode(self) -> Mode:
        """The mode with the options that override it."""
        return mode_named(self.mode).overridden(
            duration_s=self.duration,
            ramp_s=self.ramp,
            resolution_share=self.resolution,
            repeats=self.repeats,
            strategy=self.strategy,
        )

    def search(self) -> SearchSettings:
        """The search's settings. Raises UsageError for impossible ones."""
        mode = self.the_mode()
        return SearchSettings(
            start_rps=self.sweep_start,
            growth=max(self.sweep_growth, mode.least_growth) if self.sweep_growth > 1 else self.sweep_growth,
            resolution_share=mode.resolution_share,
            pass_repeats=mode.repeats,
            fail_repeats=mode.repeats,
            highest_rps=self.max_request_rate,
        )


class ProbeOptions(LoadOptions):
    """Options of `slo-bench probe`."""

    request_rate: float | None = option(None, "open loop: requests per second", group=_RUN, metavar="RATE", gt=0)
    rate_scale: float | None = option(
        None, "open loop at this factor on the trace's own mean rate, --arrivals trace", group=_RUN, metavar="S", gt=0
    )
    concurrency: int | None = option(
        None, "closed loop instead: requests kept in flight; times count from the send", group=_RUN, metavar="N", gt=0
    )
    duration: float = option(120.0, "seconds of the measured window", group=_RUN, metavar="SECONDS", gt=0)
    ramp: float = option(20.0, "seconds of the same load before it", group=_RUN, metavar="SECONDS", ge=0)
    repeat: int = option(0, "which draw of arrivals and lengths", group=_RUN, metavar="N", ge=0)
    output: Path | None = option(None, "write the result as JSON", group=_RUN, metavar="FILE")
    json_: bool = option(default=False, description="print the result as JSON", group=_RUN)
    yes: bool = option(default=False, description="do not ask before loading a host that is not this one", group=_RUN)

    @model_validator(mode="after")
    def _one_loop(self) -> ProbeOptions:
        if [self.request_rate, self.rate_scale, self.concurrency].count(None) != 2:  # noqa: PLR2004 - one of three
            raise ValueError("give either --request-rate or --rate-scale (open loop) or --concurrency (closed loop)")
        if self.concurrency is not None and (self.load_workers > 1 or self.ray_address is not None):
            raise ValueError("--load-workers goes with an open loop, --concurrency keeps its requests in one process")
        if self.rate_scale is not None and self.arrivals != "trace":
            raise ValueError("--rate-scale goes with --arrivals trace")
        if self.concurrency is not None and self.arrivals != "poisson":
            raise ValueError("--concurrency keeps requests in flight: --arrivals would change nothing")
        if self.concurrency is not None and self.workload == "multi-turn":
            raise ValueError("--workload multi-turn is a closed loop within conversations: give --request-rate")
        return self

    def the_rate_rps(self) -> float | None:
        """The open loop's rate; None for a closed loop. Raises UsageError for a trace that has no rate."""
        if self.rate_scale is not None:
            return self.the_trace().mean_rate_rps * self.rate_scale
        return self.request_rate


class SimulateOptions(Options):
    """Options of `slo-bench simulate`."""

    port: int = option(8000, "port on which the simulated server listens", group=_RUN, metavar="N", ge=1, le=65535)
    host: str = option("127.0.0.1", "address on which it listens", group=_RUN)
    seed: int = option(0, "of the engine's noise", group=_RUN, metavar="N", ge=0)
    simulated: StringList = option(
        [], "a setting of the simulated engine, repeatable", group=ENGINE, metavar="NAME=VALUE"
    )


class DoctorOptions(Options):
    """Options of `slo-bench doctor`."""

    seconds: float = option(
        45.0, "time for the search of the client's ceiling, seconds", group=_RUN, metavar="N", ge=2, le=600
    )
    load_workers: int = option(1, "processes that send, as in sweep and probe", group=_RUN, metavar="N", ge=1)
    vllm_python: Path | None = option(
        None, "interpreter whose vLLM is looked at (default: this one)", group=_RUN, metavar="PATH"
    )
    json_: bool = option(default=False, description="print the result as JSON", group=_RUN)


class DemoOptions(Options):
    """Options of `slo-bench demo`."""

    runs_dir: Path = option(Path("runs"), "where the demo's directory demo-N is made", group=_RUN, metavar="DIR")
    seed: int = option(0, "of load and engine", group=_RUN, metavar="N", ge=0)
    usd_per_hour: float = option(
        3.0, "an assumed price of the machine, so that the note has dollars", group=_RUN, metavar="USD", gt=0
    )
    lab_notes: Path | None = option(
        None, "also write the note and its figures into this folder", group=_RUN, metavar="DIR"
    )
