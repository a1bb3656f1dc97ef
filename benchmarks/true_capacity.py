"""The true capacity of the simulated engine: the rate at which exactly the allowed share of requests is over a limit.

    python benchmarks/true_capacity.py
    python benchmarks/true_capacity.py --set step_time_factor=0.97

A search on the same settings must find this number, within its resolution. Bisection with common random numbers: every
rate sees the same gaps (scaled), lengths and noise, so the share over the limit moves with the rate and little else.
Each run is two hours of measured load after a ramp; the share is pooled over `--runs` of them, and the spread between
single runs is printed, because over-limit requests come in episodes and one two-hour run is not the last word.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traffic.arrivals import POISSON
from traffic.step_model import EngineSettings, StepModel
from traffic.workload import CHAT_MIX

RAMP_S = 300.0
WINDOW_S = 7200.0
TAIL_S = 120.0
"""Load goes on after the window, so that its last requests do not see a server that is emptying."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The objectives: seconds, and the share that may be over each."""

    ttft_s: float
    tpot_s: float
    allowed_share: float


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """One two-hour run at one rate: shares over the limits, nearest-rank percentiles, and the mean load."""

    over_ttft_share: float
    over_tpot_share: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    mean_in_flight: float
    kv_use_share: float

    @property
    def worse_share(self) -> float:
        """The share that decides."""
        return max(self.over_ttft_share, self.over_tpot_share)


def look(settings: EngineSettings, rate_rps: float, limits: Limits, seed: int, run: int) -> Look:
    due_s = POISSON.due_s(rate_rps, seed, run, RAMP_S + WINDOW_S + TAIL_S)
    lengths = CHAT_MIX.draw(seed, run, len(due_s))
    driven = StepModel(settings, seed, run).drive(due_s, lengths.input_tokens, lengths.output_tokens)
    cohort = (due_s >= RAMP_S) & (due_s < RAMP_S + WINDOW_S)
    ttft_s = (driven.first_token_s - due_s)[cohort]
    has_tpot = cohort & (driven.output_tokens > 1)
    decode_s = driven.last_token_s - driven.first_token_s
    tpot_s = decode_s[has_tpot] / (driven.output_tokens[has_tpot] - 1)
    in_flight_s = driven.ended_s - due_s
    kv_token_s = lengths.input_tokens * in_flight_s + lengths.output_tokens / 2 * decode_s
    return Look(
        over_ttft_share=float(np.mean(ttft_s > limits.ttft_s)),
        over_tpot_share=float(np.mean(tpot_s > limits.tpot_s)),
        ttft_p99_s=p99(ttft_s),
        tpot_p50_s=float(np.median(tpot_s)),
        tpot_p99_s=p99(tpot_s),
        mean_in_flight=float(in_flight_s[cohort].sum() / WINDOW_S),
        kv_use_share=float(kv_token_s[cohort].sum() / WINDOW_S / settings.kv_cache_tokens),
    )


def p99(values_s: npt.NDArray[np.float64]) -> float:
    return float(np.quantile(values_s, 0.99, method="inverted_cdf"))


def looks(settings: EngineSettings, rate_rps: float, limits: Limits, seed: int, runs: int) -> Sequence[Look]:
    return [look(settings, rate_rps, limits, seed, run) for run in range(runs)]


def pooled_share(each: Sequence[Look]) -> float:
    """The worse objective's share over all runs; they are equally long."""
    return max(
        float(np.mean([one.over_ttft_share for one in each])),
        float(np.mean([one.over_tpot_share for one in each])),
    )


def true_capacity_rps(
    settings: EngineSettings,
    limits: Limits,
    *,
    seed: int,
    runs: int,
    bracket_rps: tuple[float, float],
    within_rps: float,
) -> float:
    """Bisect until the bracket is narrower than within_rps; its middle. ValueError when it holds no crossing."""
    low_rps, high_rps = bracket_rps
    if pooled_share(looks(settings, low_rps, limits, seed, runs)) > limits.allowed_share:
        raise ValueError(f"{low_rps} req/s is over the limit already")
    if pooled_share(looks(settings, high_rps, limits, seed, runs)) <= limits.allowed_share:
        raise ValueError(f"{high_rps} req/s is still inside the limit")
    while high_rps - low_rps > within_rps:
        middle_rps = (low_rps + high_rps) / 2
        if pooled_share(looks(settings, middle_rps, limits, seed, runs)) > limits.allowed_share:
            high_rps = middle_rps
        else:
            low_rps = middle_rps
    return (low_rps + high_rps) / 2


def overridden(pairs: Sequence[str]) -> EngineSettings:
    """The default settings with `name=value` pairs applied."""
    defaults = dataclasses.asdict(EngineSettings())
    values = dict(pair.split("=", 1) for pair in pairs)
    return EngineSettings(**{**defaults, **{name: type(defaults[name])(value) for name, value in values.items()}})


def report(settings: EngineSettings, rate_rps: float, limits: Limits, seed: int, runs: int) -> None:
    each = looks(settings, rate_rps, limits, seed, runs)

    def mean(values: list[float]) -> float:
        return float(np.mean(values))

    shares = [one.worse_share for one in each]
    print(
        f"{rate_rps:7.3f}  {mean([one.over_ttft_share for one in each]):9.3%}  "
        f"{mean([one.over_tpot_share for one in each]):9.3%}  {min(shares):8.3%} .. {max(shares):7.3%}  "
        f"{mean([one.ttft_p99_s for one in each]) * 1e3:8.0f}  {mean([one.tpot_p50_s for one in each]) * 1e3:8.1f}  "
        f"{mean([one.tpot_p99_s for one in each]) * 1e3:8.1f}  {mean([one.mean_in_flight for one in each]):9.1f}  "
        f"{mean([one.kv_use_share for one in each]):6.1%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of EngineSettings")
    parser.add_argument("--runs", type=int, default=8, help="two-hour runs per rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ttft-s", type=float, default=2.0)
    parser.add_argument("--tpot-s", type=float, default=0.05)
    parser.add_argument("--allowed-share", type=float, default=0.01)
    parser.add_argument("--bracket-rps", type=float, nargs=2, default=(10.5, 12.5))
    parser.add_argument("--within-rps", type=float, default=0.01)
    parser.add_argument("--rates-rps", type=float, nargs="*", default=(8.0, 10.0, 11.18, 11.5, 12.5))
    parser.add_argument("--no-search", action="store_true", help="only the table")
    options = parser.parse_args()
    started_s = time.perf_counter()
    settings = overridden(options.set)
    limits = Limits(options.ttft_s, options.tpot_s, options.allowed_share)
    print("SIMULATED; percentiles in ms, means over the runs")
    print("  req/s  over TTFT  over TPOT  single runs           p99 TTFT  p50 TPOT  p99 TPOT  in flight  KV use")
    for rate_rps in options.rates_rps:
        report(settings, rate_rps, limits, options.seed, options.runs)
    if not options.no_search:
        capacity_rps = true_capacity_rps(
            settings,
            limits,
            seed=options.seed,
            runs=options.runs,
            bracket_rps=tuple(options.bracket_rps),
            within_rps=options.within_rps,
        )
        report(settings, capacity_rps, limits, options.seed, options.runs)
        print(f"SIMULATED true capacity: {capacity_rps:.3f} req/s +- {options.within_rps / 2:.4f}")
    print(f"{time.perf_counter() - started_s:.0f} s")


if __name__ == "__main__":
    main()
