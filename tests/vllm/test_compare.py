"""A comparison on real vLLM: two servers side by side, blocks in turn, and no process left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reports.effect_document import EffectDocument
from reports.requests import read_requests
from reports.run_directory import RunDocument, read_document
from slo_bench.hosts.vllm_process import members

PROGRAM = [sys.executable, "-m", "slo_bench"]
SERVER_CORE, CLIENT_CORE = "0", "1"
SERVE = [
    "--load-format", "dummy", "--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager",
    "--no-enable-prefix-caching",
]  # fmt: skip
SHORT = [
    "--workload", "fixed", "--input-tokens", "64", "--output-tokens", "16", "--request-rate", "3", "--blocks", "3",
    "--duration", "6", "--ramp", "2",
]  # fmt: skip

CONCLUDED, INVALID = 0, 3
"""A client that shares a busy core is late, and blocks in which it is late are no result: both ends are right here."""


def pinned(core: str, command: list[str]) -> list[str]:
    """The command on one core, where there is more than one."""
    return ["taskset", "-c", core, *command] if len(os.sched_getaffinity(0)) > 1 else command


@pytest.fixture
def server_python(vllm_python: Path, tmp_path: Path) -> Path:
    """vLLM's interpreter on a core of its own: the client must not share it."""
    wrapper = tmp_path / "python-on-one-core"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(pinned(SERVER_CORE, [str(vllm_python)]))} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def living(directory: Path) -> dict[str, int]:
    """How many processes each server's group has that are no zombies, by the server's folder."""
    pids = {
        path.parent.name: int(json.loads(path.read_text())["details"]["pid"])
        for path in directory.glob("starts/*/engine.json")
    }
    return {name: sum(member.state != "Z" for member in members(pid)) for name, pid in pids.items()}


@pytest.mark.vllm
def test_two_servers_are_up_at_once_take_load_in_turn_and_leave_no_process(
    server_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    env = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": SERVER_CORE,
        "HF_HUB_OFFLINE": "1",
    }
    argv = [
        "compare", "--model", str(tiny_model), "--vllm-python", str(server_python), "--label", "tiny",
        "--placement", "coresident", "--change", "max_num_batched_tokens=1024", *SHORT, "--", *SERVE,
    ]  # fmt: skip
    directory = tmp_path / "runs" / "tiny" / "compare" / "A--B"
    with (tmp_path / "said").open("w") as said:
        run = subprocess.Popen(pinned(CLIENT_CORE, [*PROGRAM, *argv]), cwd=tmp_path, env=env, stderr=said)
        try:
            deadline_s = time.monotonic() + 600
            while run.poll() is None and not list(directory.glob("blocks/*.parquet")):
                assert time.monotonic() < deadline_s
                time.sleep(0.2)
            up = living(directory)
            code = run.wait(timeout=600)
        finally:
            run.terminate()
            run.wait(timeout=120)
    text = (tmp_path / "said").read_text()
    print(text)
    assert code in (CONCLUDED, INVALID), text
    assert sorted(up) == ["A-1", "B-1"]
    assert min(up.values()) > 0
    assert living(directory) == {"A-1": 0, "B-1": 0}
    document = read_document(directory / "effect.json", EffectDocument)
    _in_turn(document)
    _all_written(directory, document)
    record = read_document(tmp_path / "runs" / "tiny" / "run.json", RunDocument)
    assert (document.outcome, record.status) == {
        CONCLUDED: ("concluded", "done"),
        INVALID: ("invalid", "invalid"),
    }[code]


def _in_turn(document: EffectDocument) -> None:
    """Partners ran next to each other, A first and B first in turn, with the same requests."""
    for row in document.pairs:
        assert row.a_first == (row.number % 2 == 0)
        assert row.b.ran - row.a.ran == (1 if row.a_first else -1)
        assert row.a.n == row.b.n > 0


def _all_written(directory: Path, document: EffectDocument) -> None:
    """Each block has its requests, each server its documents, and the note says what the change was."""
    blocks = [block for row in document.pairs for block in (row.a, row.b)]
    blocks += [row.block for row in document.discarded]
    assert blocks
    for block in blocks:
        assert len(read_requests(directory / block.requests_file).records) >= block.n
    for arm in (document.a, document.b):
        assert [start.warm_up is not None for start in arm.starts] == [True]
        for name in ("engine.json", "engine.log", "metrics.parquet"):
            assert (directory / arm.starts[0].directory / name).exists()
    assert ("command --max-num-batched-tokens", None, "1024") in [
        (row.what, row.a, row.b) for row in document.differences
    ]
    assert "- B: `B (max_num_batched_tokens=1024)`, vllm server" in (directory / "effect.md").read_text()
