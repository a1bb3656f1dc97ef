"""Whether a sweep, or a comparison, that is killed at any moment comes to the same decision once it is resumed.

    python benchmarks/resume.py [--commands sweep compare] [--engines simulated http] [--kills 50] [--seed 0]
                                [--at-once 2]

A command is run without a kill. Then `--kills` runs are killed (SIGKILL to their process group) at moments drawn from
the seed over the whole duration, its two ends among them, every second run twice, and resumed until they end.
Simulated: every file must have the same bytes. http: `slo-bench simulate` without noise behind a real port, short
windows and clear margins. Of a sweep capacity, verdict, the windows passed and failed at each rate and the exit code
must be the same; of a comparison, whose arm B needs half the time, outcome, claim, the direction of the effect, the
pairs with their order and the exit code. Each of the `--at-once` runs under way has servers of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traffic.randomness import stream

PROGRAM = (sys.executable, "-m", "slo_bench")
ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
RUN_LIMIT_S, READY_LIMIT_S = 300.0, 60.0
PAST_THE_END = 1.02
INVALID, TRIES = 3, 3

SIMULATED = {
    "sweep": (
        *("--engine", "simulated", "--mode", "smoke", "--duration", "20", "--resolution", "0.1", "--max-minutes", "60"),
    ),
    "compare": (
        *("--engine", "simulated", "--request-rate", "8", "--instances", "2", "--change", "step_time_factor=0.97"),
    ),
}
HTTP_SWEEP = (
    *("--mode", "smoke", "--workload", "fixed", "--input-tokens", "16", "--output-tokens", "10"),
    *("--duration", "3", "--ramp", "0.5", "--sweep-start", "16", "--sweep-growth", "1.9", "--resolution", "0.95"),
    *("--slo", "ttft:p50:300"),
)
"""Rates are 16, 30.4 and 57.8 req/s. The server takes eight requests at once and 0.2 s for each, 40 req/s:
at the last rate the queue grows by 0.44 s a second, at the others there is hardly one."""

HTTP_COMPARE = (
    *("--workload", "fixed", "--input-tokens", "16", "--output-tokens", "10", "--request-rate", "15"),
    *("--blocks", "4", "--duration", "3", "--ramp", "0.5"),
)
HTTP = {"sweep": HTTP_SWEEP, "compare": HTTP_COMPARE}

SERVER = (
    *("max_num_seqs=8", "overhead_s=0.0199", "dense_read_s=0.0001", "expert_read_s=0", "kv_read_s_per_token=0"),
    *("compute_s_per_token=1e-9", "step_noise_share=0", "wander_share=0", "first_shape_cost_s=0"),
)


@dataclass(frozen=True, slots=True)
class Killed:
    """A run that was killed. stages: what was there at each kill. is_same: whether its decision is the first run's.

    turned: windows of a http sweep that passed where they should have failed or the other way round. A busy machine
    does that, with or without a kill, and then another decision is no fault of the resumption. invalid: how often it
    ended by itself because a window stayed invalid, and was resumed again.
    """

    stages: tuple[str, ...]
    is_same: bool
    turned: int
    invalid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """One command and where its files go. is_exact: every byte counts, not the decision alone."""

    command: str
    options: tuple[str, ...]
    runs_dir: Path
    is_exact: bool

    @property
    def directory(self) -> Path:
        """Its run directory."""
        return self.runs_dir / "run"

    def start(self) -> subprocess.Popen[str]:
        """Begin it, or go on with what is there; a process group of its own."""
        words = [*PROGRAM, self.command, *self.options, "--label", "run", "--runs-dir", "runs"]
        if self.directory.exists():
            words.append("--resume")
        return subprocess.Popen(
            words,
            cwd=self.runs_dir.parent,
            env=ENV,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self) -> int:
        """To its end; the exit code. Raises RuntimeError, with what it said, where it is no answer."""
        process = self.start()
        try:
            _, said = process.communicate(timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            kill(process)
            raise
        if process.returncode not in (0, 1, INVALID):
            raise RuntimeError(f"{self.directory}: it ended with {process.returncode}: {said[-2000:]}")
        return process.returncode

    def found(self, code: int) -> object:
        """What must be the same."""
        if self.is_exact:
            files = sorted(path for path in self.directory.rglob("*") if path.is_file())
            return code, {str(path.relative_to(self.directory)): path.read_bytes() for path in files}
        document = json.loads(self.document.read_text())
        if self.command == "compare":
            effect = document["effects"][0]
            order = [(pair["number"], pair["a_first"]) for pair in document["pairs"]]
            return code, [document["outcome"], effect["claim"], effect["share"] < 0, order]
        names = ("capacity_rps", "first_failed_rps", "resolution_share", "verdict", "tallies", "contradictions_rps")
        return code, [document[name] for name in names]

    @property
    def document(self) -> Path:
        """Where its answer stands."""
        return self.directory / ("sweep.json" if self.command == "sweep" else "compare/A--B/effect.json")

    def said(self) -> str:
        """Its answer in a few words."""
        document = json.loads(self.document.read_text())
        if self.command == "sweep":
            return "; ".join(document["tallies"])
        effect = document["effects"][0]
        return f"{len(document['pairs'])} pairs, {effect['metric']} {effect['share']:+.1%}, {effect['claim']}"

    def turned(self, whole: Path) -> int:
        """Valid windows on the other side of the limit than the capacity of a run without a kill says."""
        if self.command == "compare":
            return 0
        capacity_rps = json.loads((whole / "runs" / "run" / "sweep.json").read_text())["capacity_rps"]
        valid = [row for row in rows(self.document) if row["is_valid"]]
        return sum((row["outcome"] == "pass") != (row["rate_rps"] <= capacity_rps) for row in valid)

    def stage(self) -> str:
        """How far it had come."""
        if not self.directory.exists():
            return "nothing"
        if not (self.directory / "run.json").exists():
            return "no run.json"
        if json.loads((self.directory / "run.json").read_text())["status"] == "done":
            return "its answer"
        measured = 0 if not self.document.exists() else len(rows(self.document))
        if self.command == "compare":
            files = len(list(self.document.parent.glob("blocks/*.parquet")))
            return "a pair's block alone" if files > 2 * measured else f"{'some' if measured else 'no'} pairs"
        files = len(list(self.directory.glob("probes/*.parquet")))
        return "a file without its row" if files > measured else f"{'some' if measured else 'no'} windows"


def rows(document: Path) -> list[dict[str, Any]]:
    """The rows of a sweep's windows, or of a comparison's pairs."""
    found: dict[str, Any] = json.loads(document.read_text())
    measured: list[dict[str, Any]] = found["pairs"] if "pairs" in found else found["probes"]
    return measured


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the process group that was started with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def kill_and_resume(work: Work, moments_s: Sequence[float], wanted: object, whole: Path) -> Killed:
    """Kill it at each moment after its start, then let it end. wanted: what the run in `whole` found without a kill."""
    began_s = time.monotonic()
    stages = []
    for moment_s in moments_s:
        process = work.start()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moment_s)
        kill(process)
        stages.append(work.stage())
    codes = [work.run()]
    while codes[-1] == INVALID and len(codes) < TRIES:
        codes.append(work.run())
    is_same = work.found(codes[-1]) == wanted
    turned = 0 if work.is_exact else work.turned(whole)
    if not is_same:
        print(f"{work.runs_dir.parent.name}: killed after {moments_s} s: another decision, {turned} windows turned")
    return Killed(tuple(stages), is_same, turned, codes.count(INVALID), time.monotonic() - began_s)


def moments(seed: int, kills: int, whole_s: float) -> list[list[float]]:
    """Seconds after the start at which each run is killed; the first run's and the last one's are the ends."""
    drawn = [stream("kills", seed, number).uniform(0.0, whole_s, 1 + number % 2).tolist() for number in range(kills)]
    drawn[0], drawn[-1] = [0.0], [PAST_THE_END * whole_s]
    return drawn


@contextmanager
def server(step_time_factor: float = 1.0) -> Iterator[str]:
    """A simulated server behind a port; its base URL."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    settings = (*SERVER, f"step_time_factor={step_time_factor}")
    words = [*PROGRAM, "simulate", "--port", str(port), *(word for each in settings for word in ("--simulated", each))]
    process = subprocess.Popen(words, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + READY_LIMIT_S
        while not answers(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{shlex.join(words)} does not answer")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=READY_LIMIT_S)


def answers(url: str) -> bool:
    """Whether a page is there."""
    try:
        with urllib.request.urlopen(url, timeout=1.0) as page:  # noqa: S310 - our own server
            return bool(page.status == 200)  # noqa: PLR2004 - OK
    except OSError:
        return False


def measure(command: str, engine: str, arguments: argparse.Namespace, scratch: Path) -> list[Killed]:
    """All killed runs of one command on one engine."""
    kills, seed, at_once = arguments.kills, arguments.seed, arguments.at_once
    factors = {"sweep": (1.0,), "compare": (1.0, 0.5)}[command] if engine == "http" else ()
    with ExitStack() as stack:
        urls: queue.Queue[list[str]] = queue.Queue()
        for _ in range(at_once):
            urls.put([stack.enter_context(server(factor)) for factor in factors])

        def work(name: str, own: Sequence[str]) -> Work:
            given = (word for url in own for word in ("--base-url", url))
            options = (*HTTP[command], *given) if own else SIMULATED[command]
            return Work(command, options, scratch / name / "runs", is_exact=not own)

        def whole(number: int) -> tuple[object, float]:
            url = urls.get()
            try:
                (scratch / f"whole-{number}").mkdir()
                made = work(f"whole-{number}", url)
                began_s = time.monotonic()
                code = made.run()
                return made.found(code), time.monotonic() - began_s
            finally:
                urls.put(url)

        def one(number: int, moments_s: Sequence[float], wanted: object) -> Killed:
            url = urls.get()
            try:
                (scratch / str(number)).mkdir()
                return kill_and_resume(work(str(number), url), moments_s, wanted, scratch / "whole-0")
            finally:
                urls.put(url)

        with ThreadPoolExecutor(at_once) as pool:
            wholes = list(pool.map(whole, range(at_once)))  # as many at once as later, so that they take as long
            if any(found != wholes[0][0] for found, _ in wholes):
                raise RuntimeError(
                    f"{command}, {engine}: runs without a kill differ, so nothing can be held against them"
                )
            wanted, whole_s = wholes[0][0], sum(seconds for _, seconds in wholes) / at_once
            print(f"{command}, {engine}: {whole_s:.1f} s without a kill, {work('whole-0', ()).said()}", flush=True)
            return list(pool.map(one, range(kills), moments(seed, kills, whole_s), [wanted] * kills))


def main() -> int:
    """Run it all and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commands", nargs="+", choices=("sweep", "compare"), default=["sweep", "compare"])
    parser.add_argument("--engines", nargs="+", choices=("simulated", "http"), default=["simulated", "http"])
    parser.add_argument("--kills", type=int, default=50, help="runs that are killed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--at-once", type=int, default=2, help="runs at the same time")
    arguments = parser.parse_args()
    results: dict[str, list[Killed]] = {}
    for command, engine in itertools.product(arguments.commands, arguments.engines):
        with tempfile.TemporaryDirectory(prefix="slo-bench-resume-") as scratch:
            results[f"{command}, {engine}"] = measure(command, engine, arguments, Path(scratch))
    print("\n| command | runs | kills | same decision | had at the kill | turned | ended as invalid | seconds a run |")
    print("|---|---|---|---|---|---|---|---|")
    for name, runs in results.items():
        stages = Counter(stage for run in runs for stage in run.stages)
        had = ", ".join(f"{stage} {count}" for stage, count in stages.most_common())
        same = sum(run.is_same for run in runs)
        seconds = sum(run.seconds for run in runs) / len(runs)
        turned, invalid = sum(run.turned for run in runs), sum(run.invalid for run in runs)
        figures = (len(runs), stages.total(), f"{same} of {len(runs)}", had, turned, invalid, f"{seconds:.1f}")
        print(" | ".join(["", name, *map(str, figures), ""]).strip())
    return 0 if all(run.is_same for runs in results.values() for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
