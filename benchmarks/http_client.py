"""What our HTTP client costs and how truly it reads, against a server that knows the truth, beside plainer clients.

    python benchmarks/http_client.py [--rates 50 100 200 400] [--runs 3] [--seconds 10] [--clients ours raw aiohttp]

Poisson arrivals of equal requests to `slo_bench.doctor.null_server`. The server has one core and the client another;
each run is a fresh client process, and the clients take turns. All of them run on uvloop with the collector at rest,
send the same schedule and read every event as JSON, so the ratio to `raw`, about the least that Python can do, travels
between machines. Errors are what the client read minus what the server did: of quantiles, and of single requests. A run
whose server was itself more than 10 ms late (p99) is thrown away and tried again. Medians over runs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from slo_bench.doctor.null_engine import NullEngine, Truth, null_engine, null_load, readings
from slo_bench.doctor.null_server import MODEL_ID
from slo_bench.environment import environment
from traffic.clock import sleep_until
from traffic.garbage import resting_collector
from traffic.http_engine import HttpEngine
from traffic.probe import run_probe
from traffic.real_time import RealLoop
from traffic.records import End, Flight, Request, RequestRecord, freeze
from traffic.schedule import Schedule
from traffic.sender import LEAD_S

SERVER_LATE_S = 0.010
TRIES = 3
CLIENTS = ("ours", "raw", "aiohttp")
Ask = Callable[[bytes, Flight], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one client; milliseconds, but for CPU seconds per 1,000 tokens, core share and MiB."""

    client: str
    rate_rps: float
    finished_share: float
    lag_p50_ms: float
    lag_p99_ms: float
    ttft_error_p50_ms: float
    ttft_error_p99_ms: float
    request_error_p50_ms: float
    request_error_p99_ms: float
    tpot_error_p99_ms: float
    cpu_s_per_1k: float
    core_share: float
    rss_mib: float
    server_late_p99_ms: float


class RawConnection(asyncio.Protocol):
    """The peer: chunks and events taken apart by hand, as each piece arrives."""

    def __init__(self) -> None:
        self.inbox = b""
        self.in_body = False
        self.flight = Flight()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Called by the transport, as is data_received."""
        self.transport = transport

    def ask(self, head_and_body: bytes, flight: Flight) -> asyncio.Future[None]:
        """Send a request; the future is done when its answer is whole."""
        self.flight, self.in_body = flight, False
        self.done = asyncio.get_running_loop().create_future()
        flight.sent_s = time.monotonic()
        self.transport.write(head_and_body)
        return self.done

    def data_received(self, data: bytes) -> None:
        """Take the chunks that are complete."""
        now_s = time.monotonic()
        data = self.inbox + data
        if not self.in_body:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self.inbox = data
                return
            self.in_body, data = True, data[end + 4 :]
        start = 0
        while (line_end := data.find(b"\r\n", start)) >= 0:
            size = int(data[start:line_end], 16)
            if len(data) < line_end + 4 + size:
                break
            self.take(data[line_end + 2 : line_end + 2 + size], now_s)
            start = line_end + 4 + size
        self.inbox = data[start:]

    def take(self, event: bytes, now_s: float) -> None:
        """One event; the empty one is the end."""
        if not event:
            self.flight.finish(now_s, End.FINISHED)
            self.done.set_result(None)
        elif not event.startswith(b"data: [DONE]"):
            read_event(json.loads(event[6:]), self.flight, now_s)


def read_event(event: dict[str, Any], flight: Flight, now_s: float) -> None:
    """What every client must see in an event: text, and the server's counts."""
    if event["choices"] and event["choices"][0]["delta"].get("content"):
        flight.token(now_s, 0)
    if event.get("usage"):
        flight.output_tokens = event["usage"]["completion_tokens"]
        flight.prompt_tokens = event["usage"]["prompt_tokens"]


async def drive(ask: Ask, engine: HttpEngine, schedule: Schedule) -> list[RequestRecord]:
    """Send a schedule through a peer."""
    origin_s = asyncio.get_running_loop().time() + LEAD_S
    flights: list[tuple[Request, Flight]] = []
    tasks = set()
    for request in schedule.requests:
        if request.due_s > schedule.window.window_end_s:
            break
        await sleep_until(origin_s + request.due_s)
        flights.append((request, Flight()))
        tasks.add(asyncio.ensure_future(ask(engine.body(request), flights[-1][1])))
    await asyncio.wait(tasks, timeout=60)
    return [freeze(request, flight, origin_s, end=End.UNFINISHED) for request, flight in flights]


async def by_raw(null: NullEngine, schedule: Schedule) -> list[RequestRecord]:
    host, port = null.url.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: "
    idle: list[RawConnection] = []

    async def ask(body: bytes, flight: Flight) -> None:
        connection = idle.pop() if idle else None
        if connection is None:
            _, connection = await asyncio.get_running_loop().create_connection(RawConnection, host, int(port))
        await connection.ask(f"{head}{len(body)}\r\n\r\n".encode() + body, flight)
        idle.append(connection)

    return await drive(ask, null.engine, schedule)


async def by_aiohttp(null: NullEngine, schedule: Schedule) -> list[RequestRecord]:
    aiohttp = importlib.import_module("aiohttp")  # a peer that need not be installed
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(body: bytes, flight: Flight) -> None:
            flight.sent_s = time.monotonic()
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{null.url}/v1/chat/completions", data=body, headers=headers) as response:
                async for line in response.content:
                    now_s = time.monotonic()
                    if line.startswith(b"data: {"):
                        read_event(json.loads(line[6:]), flight, now_s)
            flight.finish(time.monotonic(), End.FINISHED)

        return await drive(ask, null.engine, schedule)


async def by_us(null: NullEngine, schedule: Schedule) -> list[RequestRecord]:
    return list((await run_probe(null.engine, schedule)).records)


SENDERS = {"ours": by_us, "raw": by_raw, "aiohttp": by_aiohttp}


async def run_once(options: argparse.Namespace) -> Run:
    """One client at one rate, in this process."""
    cores = sorted(os.sched_getaffinity(0))
    ttft_s, itl_s = options.ttft_ms / 1000, options.itl_ms / 1000
    async with null_engine(ttft_s=ttft_s, itl_s=itl_s, in_step=options.in_step) as null:
        if len(cores) > 1:
            os.sched_setaffinity(null.pid, {cores[1]})
            os.sched_setaffinity(0, {cores[0]})
        schedule = null_load(
            options.rate,
            options.tokens,
            duration_s=options.seconds,
            answer_s=ttft_s + options.tokens * itl_s,
            prompt_words=options.words,
            repeat=options.repeat,
        )
        with resting_collector():
            cpu_s, now_s = time.process_time(), time.monotonic()
            records = await SENDERS[options.client](null, schedule)
            cpu_s, now_s = time.process_time() - cpu_s, time.monotonic() - now_s
        return measured(options, records, await null.truth(), cpu_s, cpu_s / now_s)


def measured(
    options: argparse.Namespace, records: Sequence[RequestRecord], truth: Truth, cpu_s: float, core_share: float
) -> Run:
    members = [each for each in records if each.in_cohort]
    pairs = readings(records, truth)
    lags = [each.send_lag_s for each in members if each.send_lag_s is not None]
    ttft, true_ttft = [each.ttft_s for each in pairs], [each.true_ttft_s for each in pairs]
    tpots = [(each.tpot_s, each.true_tpot_s) for each in pairs if each.tpot_s and each.true_tpot_s]
    off = [each.ttft_s - each.true_ttft_s for each in pairs]
    return Run(
        client=options.client,
        rate_rps=options.rate,
        finished_share=len(pairs) / len(members),
        lag_p50_ms=quantile_ms(lags, 0.5),
        lag_p99_ms=quantile_ms(lags, 0.99),
        ttft_error_p50_ms=quantile_ms(ttft, 0.5) - quantile_ms(true_ttft, 0.5),
        ttft_error_p99_ms=quantile_ms(ttft, 0.99) - quantile_ms(true_ttft, 0.99),
        request_error_p50_ms=quantile_ms(off, 0.5),
        request_error_p99_ms=quantile_ms(off, 0.99),
        tpot_error_p99_ms=quantile_ms([a for a, _ in tpots], 0.99) - quantile_ms([b for _, b in tpots], 0.99),
        cpu_s_per_1k=1000 * cpu_s / sum(each.output_tokens for each in records),
        core_share=core_share,
        rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        server_late_p99_ms=(truth.late_p99_s or 0.0) * 1000,
    )


def quantile_ms(values_s: Sequence[float], share: float) -> float:
    return float(np.quantile(values_s, share, method="inverted_cdf")) * 1000


def in_its_own_process(options: argparse.Namespace, client: str, rate_rps: float, repeat: int) -> Run | None:
    """A run, tried again while the machine is too restless; None when it never was quiet, or broke."""
    given = ["--tokens", str(options.tokens), "--words", str(options.words), "--seconds", str(options.seconds)]
    given += ["--ttft-ms", str(options.ttft_ms), "--itl-ms", str(options.itl_ms)]
    given += ["--in-step"] if options.in_step else []
    for attempt in range(TRIES):
        which = ["--client", client, "--rate", str(rate_rps), "--repeat", str(repeat + 100 * attempt)]
        done = subprocess.run([sys.executable, __file__, *which, *given], stdout=subprocess.PIPE, check=False)
        if done.returncode:
            return None
        run = Run(**json.loads(done.stdout))
        if run.server_late_p99_ms <= SERVER_LATE_S * 1000:
            return run
        print(f"thrown away: {client} at {rate_rps:g}/s, server late {run.server_late_p99_ms:.1f} ms", file=sys.stderr)
    return None


def table(runs: Sequence[Run]) -> str:
    """Medians per client and rate, as Markdown."""
    head = "client | req/s | runs | finished | lag p50 / p99 ms | TTFT error p50 / p99 ms"
    head += " | of single requests p50 / p99 ms | TPOT error p99 ms | CPU s per 1k tokens | core use | RSS MiB"
    lines = [f"| {head} |", f"|---{'|--:' * head.count('|')}|"]
    for client, rate_rps in dict.fromkeys((run.client, run.rate_rps) for run in runs):
        group = [asdict(run) for run in runs if (run.client, run.rate_rps) == (client, rate_rps)]
        of = {name: statistics.median(run[name] for run in group) for name in group[0] if name != "client"}
        cells = [
            f"{client} | {rate_rps:g} | {len(group)} | {of['finished_share']:.3f}",
            f"{of['lag_p50_ms']:.2f} / {of['lag_p99_ms']:.2f}",
            f"{of['ttft_error_p50_ms']:.2f} / {of['ttft_error_p99_ms']:.2f}",
            f"{of['request_error_p50_ms']:.2f} / {of['request_error_p99_ms']:.2f}",
            f"{of['tpot_error_p99_ms']:.3f} | {of['cpu_s_per_1k']:.4f} | {of['core_share']:.2f} | {of['rss_mib']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measured window")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--words", type=int, default=32, help="of each prompt")
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--itl-ms", type=float, default=10.0)
    parser.add_argument("--in-step", action="store_true", help="all tokens leave together, as from one batch")
    parser.add_argument("--client", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tokens < 2:  # noqa: PLR2004 - its message says why
        parser.error("--tokens must be at least 2: one token has no time per token")
    if options.client:
        with asyncio.Runner(loop_factory=RealLoop) as runner:
            print(json.dumps(asdict(runner.run(run_once(options)))))
        return
    clients = [each for each in options.clients if each != "aiohttp" or importlib.util.find_spec("aiohttp")]
    cores = len(os.sched_getaffinity(0))
    print(
        f"{environment()['cpu']}, {cores} cores usable, Python {platform.python_version()}, {MODEL_ID} server: ", end=""
    )
    print(f"{options.tokens} tokens, {options.itl_ms:g} ms apart, first after {options.ttft_ms:g} ms", end="")
    print(", in step" if options.in_step else "", end="\n\n")
    if cores == 1:
        print("One core only: client and server disturb each other, and every figure is too bad.\n")
    runs = [
        run
        for rate_rps in options.rates
        for repeat in range(options.runs)
        for client in clients
        if (run := in_its_own_process(options, client, rate_rps, repeat)) is not None
    ]
    print(table(sorted(runs, key=lambda run: (run.rate_rps, clients.index(run.client)))))


if __name__ == "__main__":
    main()
