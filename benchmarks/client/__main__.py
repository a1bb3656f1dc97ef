"""Load generators side by side: slo-bench and its peers against a server in C that knows the truth.

    python benchmarks/client --clients slo-bench vllm --vllm-python VENV/bin/python --rates 200 400
    python benchmarks/client --clients guidellm aiperf inference-perf genai-bench --environments DIR --rates 10 50

Poisson arrivals (genai-bench: a closed loop) of requests for 64 tokens, 10 ms apart, the first after 50 ms. The server
has core 1 before everybody else, a client with all its processes core 0 at nice -20, where that is allowed (two
load workers, slo-bench-2: another core too, where there is one). Clients
take turns, medians over runs. A run whose server was more than 10 ms late (p99), or from which the hypervisor took more
than 1 s, is measured again, three times at most. Peers are installed into --environments at their first use, each into
one of its own. --real-time: clients of one process before all else; those of several would wait 100 ms for each turn.

lag: arrival at the server minus due. error: quantile by the client minus quantile by the server. CPU and memory: of the
process tree, from first arrival to last token. D: index of dispersion of counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import own_client
import peer_aiperf
import peer_genai_bench
import peer_guidellm
import peer_inference_perf
import peer_vllm
from environments import interpreter
from load import CannotRunError, Client, Load, server_cores
from pinned import Priority
from runs import Bench, Failed, Run, measured
from server import built, cache_folder
from table import table
from tokenizer_files import write_tokenizer

from slo_bench.environment import environment
from traffic.errors import SloBenchError, UsageError

INSTALLED = {each.NAME: each for each in (peer_guidellm, peer_aiperf, peer_inference_perf, peer_genai_bench)}
VLLM = "vllm"
CLIENTS = (own_client.NAME, own_client.TWO, VLLM, *INSTALLED)
POLITE_NICE = 10


def clients(options: argparse.Namespace) -> tuple[list[Client], list[Failed]]:
    """Those that can run here, and a word for each rate about those that cannot."""
    found, failed = [], []
    for name in options.clients:
        try:
            found.append(client(name, options))
        except CannotRunError as error:
            shown = peer_vllm.NAME if name == VLLM else name
            failed += [Failed(shown, rate_rps, str(error)) for rate_rps in options.rates]
    return found, failed


def client(name: str, options: argparse.Namespace) -> Client:
    """Raises CannotRunError where it is not to be had."""
    if name == own_client.NAME:
        return own_client.client()
    if name == own_client.TWO:
        return own_client.two_workers()
    if name == VLLM:
        if options.vllm_python is None or not options.vllm_python.exists():
            raise CannotRunError("--vllm-python names no interpreter of an environment with vLLM")
        return peer_vllm.client(options.vllm_python.absolute())
    if options.environments is None:
        raise CannotRunError("--environments names no folder for its environment")
    peer = INSTALLED[name]
    made: Client = peer.client(interpreter(options.environments.absolute(), peer.WANTED))
    return made


def run_all(options: argparse.Namespace, bench: Bench) -> tuple[list[Run], list[Failed]]:
    """Every client at every rate, in turns. What fails once at a rate is not tried again there."""
    ready, failed = clients(options)
    runs: list[Run] = []
    for rate_rps in options.rates:
        broken = set()
        for repeat in range(options.runs):
            for each in ready:
                if each.name in broken:
                    continue
                outcome = measured(bench, each, load_of(options, rate_rps, repeat))
                print(one_line(outcome), file=sys.stderr, flush=True)
                if isinstance(outcome, Failed):
                    failed.append(outcome)
                    broken.add(each.name)
                else:
                    runs.append(outcome)
    order = [each.name for each in ready]
    return sorted(runs, key=lambda run: (run.rate_rps, order.index(run.client))), failed


def load_of(options: argparse.Namespace, rate_rps: float, repeat: int) -> Load:
    return Load(
        rate_rps=rate_rps,
        seconds=options.seconds,
        tokens=options.tokens,
        words=options.words,
        first_s=options.first_ms / 1000,
        itl_s=options.itl_ms / 1000,
        repeat=options.first_repeat + repeat,
    )


def one_line(outcome: Run | Failed) -> str:
    """For whoever watches."""
    if isinstance(outcome, Failed):
        return f"{outcome.client} at {outcome.rate_rps:g}/s: {outcome.reason}"
    return (
        f"{outcome.client} at {outcome.rate_rps:g}/s, run {outcome.repeat}: achieved {outcome.achieved:.4f}, "
        f"lag p99 {outcome.lag_p99_ms or float('nan'):.2f} ms, CPU {outcome.cpu_s_per_1k:.4f} s per 1k tokens"
        f"{', disturbed' if outcome.is_disturbed else ''}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=["slo-bench", "vllm"])
    parser.add_argument("--rates", type=float, nargs="+", default=[200, 400], metavar="RPS")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of load per run")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--words", type=int, default=32, help="of each prompt")
    parser.add_argument("--first-ms", type=float, default=50.0)
    parser.add_argument("--itl-ms", type=float, default=10.0)
    parser.add_argument("--first-repeat", type=int, default=0, help="chooses other draws of the load")
    parser.add_argument("--vllm-python", type=Path, help="of an environment that has vLLM")
    parser.add_argument("--environments", type=Path, help="folder for the environments of the other peers")
    parser.add_argument("--real-time", action="store_true", help="clients run before all else on their core, see above")
    parser.add_argument("--server-cores", type=int, default=1, metavar="N", help="one carries about 800 to 1,200 req/s")
    parser.add_argument("--ignore-continuous-usage", action="store_true", help="the server counts at the end only")
    parser.add_argument("--json", type=Path, help="write every run there")
    parser.add_argument("--keep", type=Path, help="keep every file of every run in this new folder")
    options = parser.parse_args()
    if options.tokens < 2:  # noqa: PLR2004 - its message says why
        parser.error("--tokens must be at least 2: one token has no time per token")
    if not 1 <= options.server_cores < max(2, len(os.sched_getaffinity(0))):
        parser.error("--server-cores must be at least 1 and leave a core to the client")
    return options


def circumstances(options: argparse.Namespace) -> dict[str, Any]:
    """What figures of another machine or day must be read with."""
    return {
        "cpu": environment()["cpu"],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores_usable": sorted(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "tokens": options.tokens,
        "first_ms": options.first_ms,
        "itl_ms": options.itl_ms,
        "seconds": options.seconds,
        "words": options.words,
        "every_usage": not options.ignore_continuous_usage,
        "priority": "real-time" if options.real_time else "nice -20",
    }


def measure(options: argparse.Namespace, scratch: Path) -> None:
    """Measure, print the table and write the runs."""
    around = circumstances(options)
    usable = around["cores_usable"]
    around["server_cores"] = own = server_cores(usable, options.server_cores)
    bench = Bench(
        server=built(cache_folder()),
        scratch=scratch,
        tokenizer=scratch / "tokenizer",
        usable=usable,
        server_cores=own,
        every_usage=not options.ignore_continuous_usage,
        priority=Priority.REAL_TIME if options.real_time else Priority.HIGH,
    )
    write_tokenizer(bench.tokenizer)
    if own:
        os.sched_setaffinity(0, {own[0]})
        os.setpriority(os.PRIO_PROCESS, 0, POLITE_NICE)
    runs, failed = run_all(options, bench)
    around["load_average_after"] = os.getloadavg()
    print(", ".join(f"{name} {value}" for name, value in around.items()), end="\n\n")
    if not own:
        print("One core only: client and server disturb each other, and every figure is too bad.\n")
    print(table(runs, failed))
    if options.json is not None:
        document = {
            "schema_version": 1,
            "circumstances": around,
            "runs": [asdict(run) for run in runs],
            "failed": [asdict(each) for each in failed],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every client and server is ended first
    try:
        if options.keep is not None:
            options.keep.mkdir(parents=True)
            measure(options, options.keep.resolve())
            return
        with tempfile.TemporaryDirectory(prefix="slo-bench-clients-") as folder:
            measure(options, Path(folder))
    except SloBenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
