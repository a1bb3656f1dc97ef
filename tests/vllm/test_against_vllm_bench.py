"""`slo-bench probe` and `vllm bench serve` on one fixed-length workload, in turn, against the simulated server."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

RATE_RPS, INPUT_TOKENS, OUTPUT_TOKENS = 8, 256, 64
SECONDS = 20
SERVER_CORE, CLIENT_CORE = "0", "1"
BENCH = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
"""vLLM's command line needs the metadata of a distribution named vllm, which the CPU build lacks; this is its door."""

ORDER = "ABBA"
LIMIT_S = 300
INVALID, TRIES = 3, 3
"""A busy machine makes a probe invalid, and its message says to measure again."""


def pinned(core: str, *command: str) -> list[str]:
    return ["taskset", "-c", core, *command] if len(os.sched_getaffinity(0)) > 1 else list(command)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The simulated engine behind a real port, on a core of its own."""
    port = "18431"
    argv = pinned(SERVER_CORE, sys.executable, "-m", "slo_bench", "simulate", "--port", port)
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "serving simulated-moe" in line, line
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 143


def own_record(url: str) -> tuple[float, float]:
    """(sum in seconds, count) of the TPOT of every request that the server finished."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
    name = "vllm:request_time_per_output_token_seconds"
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in (f"{name}_sum", f"{name}_count")
    }
    return samples[f"{name}_sum"], samples[f"{name}_count"]


def by_slo_bench(url: str, folder: Path, turn: int) -> float:
    """Mean TPOT in ms."""
    argv = [
        "probe", "--base-url", url, "--workload", "fixed", "--input-tokens", str(INPUT_TOKENS), "--output-tokens",
        str(OUTPUT_TOKENS), "--request-rate", str(RATE_RPS), "--duration", str(SECONDS), "--ramp", "5", "--json",
        "--seed", str(turn),
    ]  # fmt: skip
    command = pinned(CLIENT_CORE, sys.executable, "-m", "slo_bench", *argv)
    for _ in range(TRIES):
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if run.returncode != INVALID:
            break
        print(run.stderr)
    assert run.returncode == 0, run.stderr
    row = json.loads(run.stdout)
    assert row["prompt_tokens_mean"] == pytest.approx(INPUT_TOKENS, rel=0.01)
    assert row["output_tokens_mean"] == OUTPUT_TOKENS
    return 1000 * float(row["tpot_mean_s"])


def by_vllm_bench(url: str, python: Path, tokenizer: Path, folder: Path, turn: int) -> float:
    """Mean TPOT in ms."""
    argv = [
        "--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions", "--model",
        "simulated-moe", "--tokenizer", str(tokenizer), "--dataset-name", "random", "--random-input-len",
        str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos", "--num-prompts",
        str(RATE_RPS * SECONDS), "--request-rate", str(RATE_RPS), "--seed", str(turn), "--save-result",
        "--result-dir", str(folder), "--result-filename", f"bench-{turn}.json", "--disable-tqdm",
    ]  # fmt: skip
    env = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = pinned(CLIENT_CORE, str(python), "-c", BENCH, *argv)
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads((folder / f"bench-{turn}.json").read_text())
    assert result["completed"] == RATE_RPS * SECONDS
    return float(result["mean_tpot_ms"])


@pytest.mark.bench
def test_mean_tpot_agrees_within_5_percent_with_vllm_bench_and_the_servers_own_record(
    server: str, vllm_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    found: dict[str, list[float]] = {"A": [], "B": []}
    records: dict[str, list[float]] = {"A": [], "B": []}
    for turn, who in enumerate(ORDER):
        before_s, before_n = own_record(server)
        if who == "A":
            found[who].append(by_slo_bench(server, tmp_path, turn))
        else:
            found[who].append(by_vllm_bench(server, vllm_python, tiny_model, tmp_path, turn))
        after_s, after_n = own_record(server)
        records[who].append(1000 * (after_s - before_s) / (after_n - before_n))
    ours, theirs = statistics.median(found["A"]), statistics.median(found["B"])
    print(f"mean TPOT in ms: slo-bench {found['A']}, server {records['A']}; vllm {found['B']}, server {records['B']}")
    assert ours == pytest.approx(theirs, rel=0.05)
    assert ours == pytest.approx(statistics.median(records["A"]), rel=0.05)
    assert theirs == pytest.approx(statistics.median(records["B"]), rel=0.05)
