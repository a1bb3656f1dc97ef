"""One run of one client against a fresh server: the client's word, the server's record, and what it cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from load import CannotRunError, Client, Command, Load, Place, Said, client_cores
from measuring import SAMPLE_S, Sample, Tree, cost, law, quantile_ms
from pinned import Priority, pinned
from server import TrueRequest, Truth, running

SERVER_LATE_MS = 10.0
STEAL_S = 1.0
TRIES = 3
START_LIMIT_S = 240.0
"""The largest of these tools import for most of a minute."""

SLOW_FACTOR = 6.0
"""A client that cannot keep its rate takes longer; more than so many times as long is a failure."""

_END_LIMIT_S = 10.0
_WORDS = 300


@dataclass(frozen=True, slots=True)
class Run:
    """One run; ms but for what its name says, None where it cannot be known.

    achieved: span of the due times over that of the arrivals, where the whole schedule was fixed beforehand, else the
    rate of arrivals over the rate asked, which chance moves by one over the root of their number. true_: by the
    server's record. cpu_s_per_1k, core_share, rss_mib: of the process tree, from first arrival to last token.
    other_share: of the client's core, used by others. is_disturbed: the server was late, or time was stolen.
    """

    client: str
    rate_rps: float
    repeat: int
    achieved: float
    finished_share: float
    gap_cv: float | None
    gap_ks: float | None
    ks_critical: float | None
    dispersion: float | None
    lag_p50_ms: float | None
    lag_p99_ms: float | None
    own_lag_p99_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    true_ttft_p50_ms: float | None
    true_ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    true_tpot_p50_ms: float | None
    true_tpot_p99_ms: float | None
    cpu_s_per_1k: float
    core_share: float
    rss_mib: float
    connections: int
    server_late_p50_ms: float
    server_late_p99_ms: float
    server_late_max_ms: float
    steal_s: float
    other_share: float
    load_average: float
    is_disturbed: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """A client that has no figures at this rate, and why."""

    client: str
    rate_rps: float
    reason: str


@dataclass(frozen=True, slots=True)
class Bench:
    """What all runs share. server: the compiled program. scratch: an empty folder. priority: of clients.

    usable: cores, before anybody moved to one. server_cores: of those; none where it must share the only one.
    """

    server: Path
    scratch: Path
    tokenizer: Path
    usable: Sequence[int]
    server_cores: Sequence[int]
    every_usage: bool
    priority: Priority


def measured(bench: Bench, client: Client, load: Load) -> Run | Failed:
    """A run, again while the machine is too restless; the last of the tries stands as disturbed."""
    for attempt in range(TRIES):
        try:
            run = once(bench, client, load, bench.scratch / f"{client.name}-{load.rate_rps:g}-{load.repeat}-{attempt}")
        except CannotRunError as error:
            return Failed(client.name, load.rate_rps, str(error))
        if not run.is_disturbed:
            break
        late = f"server late {run.server_late_p99_ms:.1f} ms, {run.steal_s:.1f} s stolen"
        print(f"disturbed: {client.name} at {load.rate_rps:g}/s, {late}", file=sys.stderr, flush=True)
    return run


def once(bench: Bench, client: Client, load: Load, folder: Path) -> Run:
    """One try. Raises CannotRunError."""
    folder.mkdir(parents=True)
    load_average = os.getloadavg()[0]
    own, cores = bench.server_cores, client_cores(bench.usable, client.cores, bench.server_cores)
    with running(bench.server, load, folder / "truth.json", cores=own, every_usage=bench.every_usage) as server:
        command = client.command(client.python, load, Place(server.url, folder, bench.tokenizer))
        samples = _driven(command, load, folder, bench.priority, cores)
    return figures(client.name, load, client.read(load, folder), server.truth(), samples, load_average)


def _driven(command: Command, load: Load, folder: Path, priority: Priority, cores: Sequence[int]) -> list[Sample]:
    """Run a client to its end, looking at its processes all the while."""
    deadline_s = time.monotonic() + START_LIMIT_S + SLOW_FACTOR * load.seconds
    argv = pinned(command.argv, cores=cores, priority=priority)
    with (
        (folder / "client.log").open("wb") as said,
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=os.environ | command.environment,
            start_new_session=True,
        ) as process,
    ):
        tree = Tree(process.pid, cores)
        try:
            while process.poll() is None and time.monotonic() < deadline_s:
                tree.look()
                time.sleep(SAMPLE_S)
        finally:
            is_late = process.poll() is None
            _end(process, tree)
    if is_late:
        raise CannotRunError(
            f"not done after {START_LIMIT_S + SLOW_FACTOR * load.seconds:.0f} s: {_last_words(folder)}"
        )
    if process.returncode:
        raise CannotRunError(f"exit code {process.returncode}: {_last_words(folder)}")
    return tree.samples


def _end(process: subprocess.Popen[bytes], tree: Tree) -> None:
    """Leave none of its processes behind."""
    for pid in tree.alive():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait(_END_LIMIT_S)


def _last_words(folder: Path) -> str:
    lines = (folder / "client.log").read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:_WORDS] if lines else "it said nothing"


def figures(  # noqa: PLR0917 - all that is known of a run
    name: str, load: Load, said: Said, truth: Truth, samples: Sequence[Sample], load_average: float
) -> Run:
    """The facts of a run. Raises CannotRunError for one without an answer."""
    meant = meant_requests(said, truth)
    whole = [each for each in meant if each.is_whole]
    if not whole or not said.ttft_s:
        raise CannotRunError(f"no request was answered ({len(truth.requests)} came to the server)")
    streams = [each for each in truth.requests if each.is_stream and each.sends]
    paid = cost(samples, min(each.arrived_s for each in streams), max(each.last_send_ns for each in streams) / 1e9)
    arrived_s = sorted(each.arrived_s for each in meant)
    lags = lags_s(due_s(said, time.time() - time.monotonic()), arrived_s)
    late_ms = truth.late_p99_ns / 1e6
    return Run(
        client=name,
        rate_rps=load.rate_rps,
        repeat=load.repeat,
        achieved=achieved(load, said, arrived_s),
        finished_share=said.finished / max(1, said.asked),
        **_shape(arrived_s),
        lag_p50_ms=quantile_ms(lags, 0.5),
        lag_p99_ms=quantile_ms(lags, 0.99),
        own_lag_p99_ms=quantile_ms(said.own_lag_s or (), 0.99),
        **_pair("ttft", said.ttft_s, [each.ttft_s for each in whole]),
        **_pair("tpot", said.tpot_s, [each.tpot_s for each in whole if each.sends > 1]),
        cpu_s_per_1k=1000 * paid.cpu_s / sum(each.sends for each in streams),
        core_share=paid.cpu_s / paid.seconds,
        rss_mib=paid.peak_rss_bytes / 2**20,
        connections=truth.connections,
        server_late_p50_ms=truth.late_p50_ns / 1e6,
        server_late_p99_ms=late_ms,
        server_late_max_ms=truth.late_max_ns / 1e6,
        steal_s=paid.steal_s,
        other_share=paid.other_s / paid.seconds,
        load_average=load_average,
        is_disturbed=late_ms > SERVER_LATE_MS or paid.steal_s > STEAL_S,
    )


def _shape(arrived_s: Sequence[float]) -> dict[str, float | None]:
    found = law(arrived_s)
    if found is None:
        return dict.fromkeys(("gap_cv", "gap_ks", "ks_critical", "dispersion"))
    return {
        "gap_cv": found.cv,
        "gap_ks": found.ks,
        "ks_critical": found.ks_critical,
        "dispersion": found.dispersion,
    }


def _pair(quantity: str, said_s: Sequence[float], true_s: Sequence[float]) -> dict[str, float | None]:
    """Quantiles by the client and by the server."""
    return {
        f"{side}{quantity}_p{percentile}_ms": quantile_ms(values_s, percentile / 100)
        for side, values_s in (("", said_s), ("true_", true_s))
        for percentile in (50, 99)
    }


def meant_requests(said: Said, truth: Truth) -> list[TrueRequest]:
    """The server's account of the requests that the client speaks of: by name, else the last ones that it asked for."""
    streams = sorted((each for each in truth.requests if each.is_stream), key=lambda each: each.arrived_ns)
    if said.names is not None:
        return [each for each in streams if each.name in said.names]
    return streams[-said.asked :]


def due_s(said: Said, utc_offset_s: float) -> list[float]:
    """In order, on CLOCK_MONOTONIC; nothing where nobody knows. utc_offset_s: UTC minus that clock."""
    if said.due_s is not None:
        return sorted(said.due_s)
    return sorted(each - utc_offset_s for each in said.due_utc_s or ())


def lags_s(due: Sequence[float], arrived_s: Sequence[float]) -> list[float]:
    """Arrival minus due, each in its order; nothing where the two cannot belong together."""
    if len(due) != len(arrived_s):
        return []
    lags: list[float] = (np.asarray(arrived_s) - np.asarray(due)).tolist()
    return lags


def achieved(load: Load, said: Said, arrived_s: Sequence[float]) -> float:
    """See `Run`. Due times that are told in UTC were chosen on the way, and may have given way themselves."""
    span_s = arrived_s[-1] - arrived_s[0]
    if span_s <= 0:
        return 0.0
    if said.due_s is not None and len(said.due_s) == len(arrived_s):
        return (max(said.due_s) - min(said.due_s)) / span_s
    return (len(arrived_s) - 1) / span_s / load.rate_rps
