"""Real processes: whatever way the tool dies, its server goes too, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slo_bench.hosts.vllm_process import ServerProcess
from slo_bench.hosts.watchdog import TOKEN_NAME, Container, Member, Watchdog, owned, process, processes, send

pytestmark = pytest.mark.process

CHECKOUT = Path(__file__).parents[3]
PYTHON = [sys.executable, "-S", "-c"]

POLITE = "import time; print('up', flush=True); time.sleep(60)"
FAMILY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    os.fork()
else:
    os.fork()
print("up", flush=True)
time.sleep(60)
"""
"""Four processes that ignore SIGTERM, two of them in a session of their own (R29)."""

ORPHANS = """
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
    print("up", flush=True)
    time.sleep(60)
"""
"""Two processes, one of them in a session of its own, whose leader ends at once."""

TOOL = """
import json, os, sys, time
from pathlib import Path
from slo_bench.hosts.vllm_process import ServerProcess
log = Path(sys.argv[1])
server = ServerProcess([sys.executable, "-S", "-c", sys.argv[2]], env={}, log_path=log)
print(json.dumps({"server": server.pid, "watchdog": server._watchdog.pid, "token": server._token}), flush=True)
if sys.argv[3:] == ["fork"] and os.fork() == 0:
    time.sleep(20)
    os._exit(0)
if sys.argv[3:] == ["raise"]:
    sys.stdin.readline()
    raise RuntimeError("a bug")
time.sleep(60)
"""


def until(condition: Callable[[], object], limit_s: float = 10.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to pass in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    member = process(pid)
    return member is not None and member.is_alive


class Tool:
    """A process that started a server, like slo-bench."""

    def __init__(self, folder: Path, server: str, *more: str, lines: int = 1) -> None:
        self.log = folder / "engine.log"
        self.popen = subprocess.Popen(
            [sys.executable, "-c", TOOL, str(self.log), server, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=CHECKOUT,
            start_new_session=True,
        )
        assert self.popen.stdout is not None
        facts = json.loads(self.popen.stdout.readline())
        self.server, self.watchdog, self.token = facts["server"], facts["watchdog"], facts["token"]
        until(lambda: self.log.read_text().count("up\n") >= lines)

    def living(self) -> list[Member]:
        return owned(self.server, 0, self.token)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def close(self) -> None:
        """Nothing of a failed test stays behind."""
        for member in self.living():
            send(member, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.communicate()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Tool]]:
    tools: list[Tool] = []

    def start(server: str, *more: str, lines: int = 1) -> Tool:
        tools.append(Tool(tmp_path, server, *more, lines=lines))
        return tools[-1]

    yield start
    for tool in tools:
        tool.close()


class TestDeathOfTheTool:
    def test_killed_with_sigkill_it_leaves_no_server_and_no_watchdog(self, started: Callable[..., Tool]) -> None:
        tool = started(POLITE)
        assert is_alive(tool.watchdog)
        tool.kill()
        until(lambda: not tool.living() and not is_alive(tool.watchdog), 5.0)
        assert "watchdog: slo-bench died without stopping this server; ending it" in tool.log.read_text()

    def test_a_family_that_ignores_sigterm_goes_too_those_in_another_session_included(
        self, started: Callable[..., Tool]
    ) -> None:
        tool = started(FAMILY, lines=4)
        family = tool.living()
        assert len(family) == 4
        assert len({member.session for member in family}) == 2
        tool.kill()
        until(lambda: not tool.living() and not is_alive(tool.watchdog), 12.0)

    def test_workers_whose_server_was_gone_before(self, started: Callable[..., Tool]) -> None:
        tool = started(ORPHANS, lines=2)
        until(lambda: len(tool.living()) == 2)
        tool.kill()
        until(lambda: not tool.living(), 5.0)

    def test_a_child_of_the_tool_that_holds_the_pipe_open_delays_it_by_a_second_only(
        self, started: Callable[..., Tool]
    ) -> None:
        tool = started(POLITE, "fork")
        tool.kill()
        until(lambda: not tool.living() and not is_alive(tool.watchdog), 5.0)

    def test_an_exception_that_nobody_catches(self, started: Callable[..., Tool]) -> None:
        tool = started(POLITE, "raise")
        assert tool.popen.stdin is not None
        tool.popen.stdin.write(b"now\n")
        tool.popen.stdin.flush()
        until(lambda: not tool.living() and not is_alive(tool.watchdog), 5.0)


def test_a_stop_ends_workers_in_another_session_too_r29(tmp_path: Path) -> None:
    async def run() -> None:
        server = ServerProcess([*PYTHON, FAMILY], env={}, log_path=tmp_path / "engine.log")
        until(lambda: server.log_text().count("up\n") == 4)
        assert len(server.pids()) == 4
        os.kill(server.pid, signal.SIGKILL)
        await server.stop(grace_s=0.05)
        assert owned(server.pid, 0, server._token) == []
        assert not is_alive(server._watchdog.pid)

    asyncio.run(run())


class Watched:
    """A watchdog of this process, and a server that it may be told of."""

    def __init__(self, folder: Path, container: Container | None = None) -> None:
        self.log = folder / "log"
        self.token = "0123456789abcdef"  # noqa: S105 - names a process
        with self.log.open("ab") as log:
            self.dog = Watchdog(self.token, log=log, container=container, grace_s=0.2)
        self.servers: list[subprocess.Popen[bytes]] = []

    def server(self, *, has_token: bool) -> Member:
        env = {TOKEN_NAME: self.token} if has_token else {}
        self.servers.append(
            subprocess.Popen([*PYTHON, POLITE], env=env, stdout=subprocess.PIPE, start_new_session=True)
        )
        stdout = self.servers[-1].stdout
        assert stdout is not None
        assert stdout.readline() == b"up\n"
        member = process(self.servers[-1].pid)
        assert member is not None
        return member

    def abandon(self) -> int:
        """Close the pipe without a word, as death does; the watchdog's exit code."""
        assert self.dog._child.stdin is not None
        self.dog._child.stdin.close()
        return self.dog._child.wait(10)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    here = Watched(tmp_path)
    yield here
    here.dog.stand_down()
    for server in here.servers:
        server.kill()
        server.communicate()


class TestWhoIsEnded:
    def test_the_process_that_was_named(self, watched: Watched) -> None:
        server = watched.server(has_token=False)
        watched.dog.watch(server)
        assert watched.abandon() == 0
        assert not is_alive(server.pid)

    def test_a_server_that_could_not_be_named_any_more(self, watched: Watched) -> None:
        server = watched.server(has_token=True)
        assert watched.abandon() == 0
        assert not is_alive(server.pid)

    def test_a_later_process_with_the_same_number_is_left_alone(self, watched: Watched) -> None:
        stranger = watched.server(has_token=False)
        watched.dog.watch(stranger._replace(started=stranger.started - 100))
        assert watched.abandon() == 0
        assert is_alive(stranger.pid)

    def test_a_signal_is_for_the_process_that_was_meant(self, watched: Watched) -> None:
        stranger = watched.server(has_token=False)
        send(stranger._replace(started=stranger.started - 1), signal.SIGKILL)
        assert is_alive(stranger.pid)

    def test_nobody_when_there_is_no_server(self, watched: Watched) -> None:
        before = {member.pid for member in processes()}
        assert watched.abandon() == 0
        assert os.getpid() in before & {member.pid for member in processes()}


class TestStandDown:
    def test_it_goes_at_once_and_leaves_the_server(self, watched: Watched) -> None:
        server = watched.server(has_token=True)
        watched.dog.watch(server)
        began_s = time.monotonic()
        watched.dog.stand_down()
        assert time.monotonic() - began_s < 2.0
        assert watched.dog._child.returncode == 0
        assert is_alive(server.pid)
        assert watched.log.read_text() == ""
        watched.dog.stand_down()

    def test_signals_that_end_the_tool_in_an_orderly_way_do_not_end_it(self, watched: Watched) -> None:
        until(lambda: b"watchdog.py" in Path(f"/proc/{watched.dog.pid}/cmdline").read_bytes())
        until(lambda: _ignores(watched.dog.pid, signal.SIGTERM))
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(watched.dog.pid, signum)
        assert is_alive(watched.dog.pid)

    def test_one_that_somebody_killed_is_no_obstacle(self, watched: Watched) -> None:
        os.kill(watched.dog.pid, signal.SIGKILL)
        until(lambda: not is_alive(watched.dog.pid))
        watched.dog.watch(watched.server(has_token=False))
        watched.dog.stand_down()


def _ignores(pid: int, signum: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:"))
    return bool(ignored >> (signum - 1) & 1)


def test_it_is_small(watched: Watched) -> None:
    until(lambda: _ignores(watched.dog.pid, signal.SIGTERM))
    status = Path(f"/proc/{watched.dog.pid}/status").read_text()
    private_kib = int(status.partition("RssAnon:")[2].split()[0])
    print(f"watchdog: {private_kib} KiB of its own")
    assert private_kib < 12_000


def test_a_container_is_stopped_by_its_id(tmp_path: Path) -> None:
    program, calls, id_file = tmp_path / "docker", tmp_path / "calls", tmp_path / "id"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    program.chmod(0o755)
    here = Watched(tmp_path, Container(str(program), id_file))
    id_file.write_text("c0ffee\n")
    assert here.abandon() == 0
    assert calls.read_text().splitlines()[:2] == ["stop -t 0 c0ffee", "rm --force c0ffee"]
    assert not id_file.exists()
