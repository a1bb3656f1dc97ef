"""One process at a time in a run directory, and none once its holder is dead."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slo_bench.cli import main
from slo_bench.lock import LOCK_NAME, held
from traffic.errors import UsageError

PROGRAM = [sys.executable, "-m", "slo_bench"]
LOAD = ["--workload", "fixed", "--input-tokens", "16", "--output-tokens", "8"]


def test_a_second_one_is_told_who_holds_it(tmp_path: Path) -> None:
    who = re.escape(f"process {os.getpid()} on {socket.gethostname()}")
    with (
        held(tmp_path),
        pytest.raises(UsageError, match=f"is in use by {who}: wait for it, or stop it"),
        held(tmp_path),
    ):
        pass
    with held(tmp_path):
        pass


def test_nothing_of_it_is_left(tmp_path: Path) -> None:
    with held(tmp_path / "runs" / "x"):
        assert (tmp_path / "runs" / "x" / LOCK_NAME).exists()
    assert list(tmp_path.iterdir()) == []
    with held(tmp_path / "runs" / "x"):
        (tmp_path / "runs" / "x" / "run.json").write_text("{}")
    assert [path.name for path in (tmp_path / "runs" / "x").iterdir()] == ["run.json"]


def test_what_is_not_there_cannot_be_gone_on_with_and_is_not_made(tmp_path: Path) -> None:
    with held(tmp_path / "x", is_new=False):
        assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_dead_process_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("process 4194304 on a-machine-that-is-gone\n")
    with held(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / LOCK_NAME).read_text()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is not a folder"), held(tmp_path / "file" / "x"):
        pass
    with pytest.raises(UsageError, match="cannot write"), held(tmp_path / "file"):
        pass


@pytest.mark.parametrize(
    ("command", "label"),
    [
        (["sweep", "--engine", "simulated", "--label", "x"], "x"),
        (["sweep", "--engine", "simulated", "--label", "x", "--resume"], "x"),
        (["compare", "--engine", "simulated", "--same-ok", "--request-rate", "5", "--label", "x"], "x"),
        (["compare", "--engine", "simulated", "--same-ok", "--request-rate", "5", "--label", "x", "--resume"], "x"),
        (["experiment", "plan.toml"], "plan"),
        pytest.param(["experiment", "plan.toml", "--resume"], "plan", marks=pytest.mark.process),
    ],
)
def test_every_command_leaves_a_directory_alone_that_another_process_holds(
    command: list[str], label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text('[[arm]]\nlabel = "one"\nengine = "simulated"\n')
    with held(Path("runs") / label):
        assert main(command) == 2
        assert [path.name for path in (Path("runs") / label).iterdir()] == [LOCK_NAME]
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said == (
        f"slo-bench: runs/{label} is in use by process {os.getpid()} on {socket.gethostname()}: wait for it, or stop it"
    )


@pytest.mark.process
def test_a_dry_run_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with held(Path("runs/x")):
        assert main(["sweep", "--engine", "simulated", "--label", "x", "--dry-run"]) == 0


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from slo_bench.lock import held
with held(Path(sys.argv[1])):
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.process
def test_a_killed_process_holds_nothing_and_neither_does_its_child(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child = None
    try:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        with pytest.raises(UsageError, match=f"in use by process {holder.pid} "), held(tmp_path):
            pass
        holder.kill()
        holder.wait(timeout=10)
        os.kill(child, 0)  # it lives
        with held(tmp_path):
            pass
    finally:
        holder.kill()
        if child is not None:
            os.kill(child, signal.SIGKILL)
        holder.communicate()


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A simulated server behind a port; its base URL."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    server = subprocess.Popen(
        [*PROGRAM, "simulate", "--port", str(port)], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        assert "serving" in server.stderr.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=20)


def children(pid: int) -> list[int]:
    """The processes that it started."""
    parents = {each.parent.name: each.read_text().split()[3] for each in Path("/proc").glob("[0-9]*/stat")}
    return [int(child) for child, parent in parents.items() if parent == str(pid)]


def open_files(pid: int) -> list[str]:
    return [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]


@pytest.mark.process
def test_the_load_workers_of_a_killed_run_do_not_hold_its_directory(tmp_path: Path) -> None:
    lock = tmp_path / "runs" / "x" / LOCK_NAME
    argv = ["sweep", "--mode", "smoke", "--load-workers", "2", "--label", "x", *LOAD]
    with serving(tmp_path) as url:
        run = subprocess.Popen([*PROGRAM, *argv, "--base-url", url], cwd=tmp_path, stderr=subprocess.DEVNULL)
        workers: list[int] = []
        try:
            deadline_s = time.monotonic() + 60
            while not (lock.parent / "run.json").exists() and run.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.02)
            workers = children(run.pid)
            assert len(workers) >= 2
            assert str(lock) in open_files(run.pid)
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)  # so that they outlive it
            run.kill()
            run.wait(timeout=10)
            assert not any(str(lock) in open_files(pid) for pid in workers)
            with held(lock.parent):
                pass
        finally:
            run.kill()
            run.wait(timeout=10)
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
