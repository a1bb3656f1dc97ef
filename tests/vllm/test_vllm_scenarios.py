"""What goes wrong around a real vLLM server: it dies, we die, a port is taken, a cache is warm, somebody gives up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from reports.run_directory import RunDocument, SweepDocument, read_document
from slo_bench.hosts import vllm_process
from slo_bench.hosts.attached import requests_in_server
from slo_bench.hosts.vllm import VllmHost
from slo_bench.hosts.watchdog import Member, processes, send
from traffic.errors import EngineError

pytestmark = pytest.mark.vllm

PROGRAM = [sys.executable, "-m", "slo_bench"]
ARGS = [
    "--load-format", "dummy", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "64",
    "--kv-cache-memory-bytes", "134217728", "--disable-uvicorn-access-log",
]  # fmt: skip
ONE_PROCESS_LESS = ["--distributed-executor-backend", "uni"]
"""With the variable below the worker lives inside EngineCore: a third of the start is saved."""

FAST_ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
OFFLINE = {"HF_HUB_OFFLINE": "1"}
START_LIMIT_S = 300.0


def until(condition: Callable[[], object], limit_s: float, *, what: str) -> float:
    """Seconds until the condition held."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < limit_s, f"not within {limit_s:g} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - began_s


Family = dict[tuple[int, int], Member]
"""Processes by number and start: the same one may sleep when it is seen again."""


def descendants(pid: int) -> Family:
    """Every process below this one, in whatever session."""
    table = {(member.pid, member.started): member for member in processes()}
    found = {key: member for key, member in table.items() if member.parent == pid}
    parents = {pid}
    while below := {member.pid for member in found.values()} - parents:
        parents |= below
        found |= {key: member for key, member in table.items() if member.parent in below}
    return found


def left_of(family: Family) -> list[Member]:
    """Those that still live: the same processes, whoever their parent is now."""
    return [member for member in processes() if (member.pid, member.started) in family and member.is_alive]


@dataclass
class Tool:
    """slo-bench as a person starts it, and everything that it started."""

    folder: Path
    popen: subprocess.Popen[str]
    family: Family = field(default_factory=dict)

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "r"

    def look(self) -> Family:
        self.family |= descendants(self.popen.pid)
        return self.family

    def ready_url(self) -> str:
        """Wait for the server to answer; its URL."""

        def is_ready() -> bool:
            self.look()
            assert self.popen.poll() is None, self.popen.communicate()[1]
            return (self.run / "engine.json").exists()

        until(is_ready, START_LIMIT_S, what="the server is ready")
        return str(json.loads((self.run / "engine.json").read_text())["details"]["url"])

    def end(self, limit_s: float) -> tuple[int, str]:
        """Exit code and stderr."""
        _, stderr = self.popen.communicate(timeout=limit_s)
        print(stderr)
        return self.popen.returncode, stderr


def sweep(folder: Path, python: Path, model: Path, *more: str, env: dict[str, str]) -> Tool:
    argv = [
        "sweep", "--model", str(model), "--vllm-python", str(python), "--label", "r", "--mode", "smoke",
        "--length-scale", "0.4", "--sweep-start", "4", "--max-request-rate", "90", "--", *ARGS, *more,
    ]  # fmt: skip
    popen = subprocess.Popen(
        [*PROGRAM, *argv], cwd=folder, env=os.environ | OFFLINE | env, stderr=subprocess.PIPE, text=True
    )
    return Tool(folder, popen)


@pytest.fixture
def sweeping(vllm_python: Path, tmp_path: Path) -> Iterator[Callable[..., Tool]]:
    """Start a sweep; nothing of a failed test stays behind."""
    tools: list[Tool] = []

    def start(model: Path, *more: str, env: dict[str, str]) -> Tool:
        tools.append(sweep(tmp_path, vllm_python, model, *more, env=env))
        return tools[-1]

    yield start
    for tool in tools:
        tool.look()
        if tool.popen.poll() is None:
            tool.popen.kill()
        tool.popen.communicate()
        for member in left_of(tool.family):
            send(member, signal.SIGKILL)


def running_requests(url: str) -> float:
    with suppress(OSError):
        counts = requests_in_server(urllib.request.urlopen(f"{url}/metrics", timeout=5).read().decode())
        return 0.0 if counts is None else counts[0]
    return 0.0


def titled(family: Family, title: str) -> list[Member]:
    """Those whose name begins so; the kernel keeps 15 characters."""
    found = []
    for member in family.values():
        with suppress(OSError):
            if Path(f"/proc/{member.pid}/comm").read_text().startswith(title[:15]):
                found.append(member)
    return found


class TestDeath:
    def test_an_engine_core_that_is_killed_in_the_middle_of_a_probe(
        self, sweeping: Callable[..., Tool], tiny_model: Path
    ) -> None:
        """Three processes: the worker is EngineCore's child, and has to go with it."""
        tool = sweeping(tiny_model, env={})
        url = tool.ready_url()
        until((tool.run / "sweep.json").exists, 120, what="a first window is measured")
        until(lambda: running_requests(url) > 0, 30, what="the next window has begun")
        (core,) = titled(tool.look(), "VLLM::EngineCore")
        assert titled(tool.family, "VLLM::Worker")
        os.kill(core.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        code, stderr = tool.end(60)
        print(f"exit {time.monotonic() - killed_s:.1f} s after EngineCore was killed")
        assert code == 4
        lines = [line for line in stderr.splitlines() if line.startswith("slo-bench: ")]
        assert len(lines) == 1
        assert "engine died: [shutdown] MPClient: engine core exited unexpectedly" in lines[0]
        assert "engine.log" in lines[0]
        assert "Traceback" not in stderr
        assert read_document(tool.run / "sweep.json", SweepDocument).probes
        document = read_document(tool.run / "run.json", RunDocument)
        assert (document.status, "engine died" in (document.reason or "")) == ("failed", True)
        assert left_of(tool.family) == []

    def test_the_tool_killed_with_sigkill_leaves_no_process(
        self, sweeping: Callable[..., Tool], tiny_model: Path
    ) -> None:
        tool = sweeping(tiny_model, *ONE_PROCESS_LESS, env=FAST_ENV)
        url = tool.ready_url()
        until(lambda: running_requests(url) > 0, 30, what="load is on")
        family = tool.look()
        assert len(left_of(family)) >= 3  # server, EngineCore, watchdog
        tool.popen.kill()
        gone_s = until(lambda: not left_of(family), 15, what="no process is left")
        print(f"nothing left {gone_s:.1f} s after SIGKILL")


class TestStart:
    def test_a_wrong_model_folder(self, sweeping: Callable[..., Tool], tmp_path: Path) -> None:
        empty = tmp_path / "no-model-here"
        empty.mkdir()
        tool = sweeping(empty, *ONE_PROCESS_LESS, env=FAST_ENV)
        until(lambda: tool.look() and tool.popen.poll() is not None, START_LIMIT_S, what="it gives up")
        code, stderr = tool.end(5)
        assert code == 4
        lines = [line for line in stderr.splitlines() if line.startswith("slo-bench: ")]
        assert len(lines) == 1
        assert "vLLM ended before it was ready: " in lines[0]
        assert "no-model-here" in lines[0].partition("its log is")[0]
        assert "Invalid repository ID or local directory" in lines[0]
        assert left_of(tool.family) == []

    def test_ctrl_c_while_it_loads(self, sweeping: Callable[..., Tool], tiny_model: Path) -> None:
        tool = sweeping(tiny_model, env={})
        log = tool.run / "engine.log"
        until(lambda: log.exists() and "non-default args" in log.read_text(), START_LIMIT_S, what="it loads")
        family = tool.look()
        assert len(left_of(family)) >= 2  # server, watchdog
        tool.popen.send_signal(signal.SIGINT)
        interrupted_s = time.monotonic()
        code, _ = tool.end(30)
        print(f"exit {time.monotonic() - interrupted_s:.1f} s after SIGINT")
        assert code == 130
        assert left_of(family | tool.look()) == []
        assert [path.name for path in tool.run.iterdir()] == ["engine.log"]


@dataclass
class Shared:
    """A server for several tests, whose first start met a port that somebody had taken meanwhile."""

    host: VllmHost
    log: Path
    busy_port: int

    @property
    def url(self) -> str:
        return str(self.host.facts.details["url"])


@pytest.fixture(scope="module")
def shared(vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    log = tmp_path_factory.mktemp("shared") / "engine.log"
    blocker = socket.create_server((vllm_process.LOOPBACK, 0))
    busy_port = blocker.getsockname()[1]
    offered = [(socket.socket(), busy_port)]
    host = VllmHost(
        str(tiny_model),
        served_name="tiny",
        log_path=log,
        engine_args=[*ARGS, *ONE_PROCESS_LESS, "--enable-prefix-caching", "--enable-prompt-tokens-details"],
        env=OFFLINE | FAST_ENV,
        python=vllm_python,
        ready_timeout_s=START_LIMIT_S,
        on_progress=print,
    )
    with blocker, asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr("slo_bench.hosts.vllm.hold_port", lambda: offered.pop() if offered else vllm_process.hold_port())
        runner.run(host.__aenter__())
        pids = host.pids()
        try:
            yield Shared(host, log, busy_port)
        finally:
            runner.run(host.__aexit__(None, None, None))
    assert not [member for member in processes() if member.pid in pids and member.is_alive]


class TestPort:
    def test_one_that_was_taken_meanwhile_is_given_up_for_another(self, shared: Shared) -> None:
        assert f":{shared.busy_port}" not in shared.url
        assert "Address already in use" in shared.log.read_text()
        assert "Address already in use" not in shared.host.log_text()

    def test_a_stale_server_is_never_taken_for_ours(self, shared: Shared, vllm_python: Path, tmp_path: Path) -> None:
        port = int(shared.url.rpartition(":")[2])
        second = VllmHost("tiny", log_path=tmp_path / "engine.log", python=vllm_python, port=port)
        with pytest.raises(
            EngineError, match=f"port {port} is taken by a server that answers there already, with tiny"
        ):
            asyncio.run(second.__aenter__())
        assert not (tmp_path / "engine.log").exists()

    def test_the_process_that_listens_is_ours(self, shared: Shared) -> None:
        assert vllm_process.listener(int(shared.url.rpartition(":")[2])) in shared.host.pids()


class TestWarmCache:
    def test_the_same_text_sent_twice_to_one_server_is_no_measurement_and_the_same_command_sends_other_text_r17(
        self, shared: Shared, tmp_path: Path
    ) -> None:
        argv = [
            "probe", "--base-url", shared.url, "--seed", "5", "--request-rate", "4", "--duration", "8", "--ramp", "1",
            "--workload", "fixed", "--input-tokens", "768", "--output-tokens", "16", "--slo", "ttft:p90:5000",
            "--slo", "tpot:p90:1000", "--json",
        ]  # fmt: skip
        rows, codes = [], []
        for salt in (["--text-salt", "7"], ["--text-salt", "7"], [], []):
            done = subprocess.run(
                [*PROGRAM, *argv, *salt], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
            )
            row = json.loads(done.stdout)
            print(done.returncode, row["cached_share"], row["flags"], row["invalid_reasons"])
            print(row["prompt_tokens_mean"], row["prompt_tokens_min"], row["prompt_tokens_max"])
            rows.append(row)
            codes.append(done.returncode)
        cached = [[reason for reason in row["invalid_reasons"] if "prefix cache" in reason] for row in rows]
        assert [len(reasons) for reasons in cached] == [0, 1, 0, 0]
        assert "restart the server or use another --seed" in cached[1][0]
        assert codes[1] == 3
        # Whole words make prompts of 768 tokens (sd 15) up to 0.2 % longer or shorter than meant; the mean of 32 is
        # known to 0.4 %, that of three texts to 0.2 %.
        means = [row["prompt_tokens_mean"] for row in rows[1:]]
        assert abs(sum(means) / len(means) / 768 - 1) < 0.02
