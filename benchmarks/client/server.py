"""server.c: built at its first use, started on a core of its own, and its record of what really happened."""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from load import Load
from pinned import Priority, pinned
from pydantic import BaseModel, ConfigDict

from traffic.errors import EngineError, UsageError

SOURCE = Path(__file__).with_name("server.c")
FLAGS = ("-O2", "-Wall", "-Wextra")
COMPILERS = ("gcc", "cc", "clang")
BUILD_LIMIT_S = 60.0
START_LIMIT_S = 20.0
END_LIMIT_S = 20.0


class TrueRequest(BaseModel):
    """One request; ns of CLOCK_MONOTONIC. arrived, complete: its first byte, its last. sends: tokens handed over."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    connection: int
    is_chat: bool
    is_stream: bool
    is_whole: bool
    asked: int
    sends: int
    arrived_ns: int
    complete_ns: int
    first_send_ns: int
    last_send_ns: int
    worst_late_ns: int

    @property
    def arrived_s(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return self.arrived_ns / 1e9

    @property
    def ttft_s(self) -> float:
        """From the first byte to the first token."""
        return (self.first_send_ns - self.arrived_ns) / 1e9

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first."""
        return (self.last_send_ns - self.first_send_ns) / 1e9 / max(1, self.sends - 1)


class Truth(BaseModel):
    """Everything that the server did. late: how long after its due time a token was handed to the kernel."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int
    sends: int
    connections: int
    cpu_s: float
    late_p50_ns: int
    late_p99_ns: int
    late_max_ns: int
    requests: tuple[TrueRequest, ...]


@dataclass(frozen=True, slots=True)
class Server:
    """A running one, of one process or more. url: its root. truth_paths: where its records are once it has ended."""

    url: str
    truth_paths: tuple[Path, ...]

    def truth(self) -> Truth:
        """Its record; only after its end."""
        return together([Truth.model_validate_json(path.read_bytes()) for path in self.truth_paths])


def together(records: Sequence[Truth]) -> Truth:
    """Of processes that share a port. Its quantiles of lateness are those of the process that was the latest."""
    requests: list[TrueRequest] = []
    before = 0
    for each in records:
        requests += [one.model_copy(update={"connection": one.connection + before}) for one in each.requests]
        before += each.connections
    return Truth(
        schema_version=records[0].schema_version,
        sends=sum(each.sends for each in records),
        connections=before,
        cpu_s=sum(each.cpu_s for each in records),
        late_p50_ns=max(each.late_p50_ns for each in records),
        late_p99_ns=max(each.late_p99_ns for each in records),
        late_max_ns=max(each.late_max_ns for each in records),
        requests=tuple(requests),
    )


def cache_folder() -> Path:
    """Where the compiled server is kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "slo-bench" / "client-benchmark"


def built(folder: Path) -> Path:
    """The compiled server, made where this source has none yet. Raises UsageError without a compiler, or for its no."""
    version = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    program = folder / f"server-{version}"
    if program.exists():
        return program
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise UsageError(f"the mock server is C and no compiler is here ({', '.join(COMPILERS)}): install gcc")
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{program.name}.{os.getpid()}"
    argv = [compiler, *FLAGS, "-o", str(fresh), str(SOURCE)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    if done.returncode:
        raise UsageError(f"{compiler} cannot compile {SOURCE}: {(done.stderr.strip() or 'no word').splitlines()[-1]}")
    fresh.replace(program)
    return program


@contextmanager
def running(
    program: Path, load: Load, truth_path: Path, *, cores: Sequence[int], every_usage: bool = True
) -> Iterator[Server]:
    """Serve, and write the record on the way out; the server ends with its standard input, our death included.

    cores: a process on each, before everybody else where that is allowed, since it is the measure of all; the kernel
    deals the connections of the one port. None at all: one process, wherever it lands. every_usage: whether usage comes
    with every token where a client asks so. Raises EngineError when it does not start or end.
    """
    argv = [str(program), "--first-ms", f"{1000 * load.first_s:g}", "--itl-ms", f"{1000 * load.itl_s:g}"]
    argv += [] if every_usage else ["--ignore-continuous-usage"]
    argv += ["--share-port"] if len(cores) > 1 else []
    paths = [truth_path, *(truth_path.with_suffix(f".{number}.json") for number in range(1, len(cores)))]
    with ExitStack() as stack:
        url = stack.enter_context(_process([*argv, "--truth", str(paths[0])], cores[:1]))
        argv += ["--port", str(urlsplit(url).port)]
        for path, core in zip(paths[1:], cores[1:], strict=True):
            stack.enter_context(_process([*argv, "--truth", str(path)], (core,)))
        yield Server(url, tuple(paths))


@contextmanager
def _process(argv: Sequence[str], cores: Sequence[int]) -> Iterator[str]:
    """One, until it has written its record; gives its URL."""
    argv = pinned(argv, cores=cores, priority=Priority.REAL_TIME) if cores else argv
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr) as process:
        try:
            yield _url(process)
        finally:
            _end(process)
    if process.returncode:
        raise EngineError(f"the mock server ended with exit code {process.returncode}; its standard error says why")


def _url(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    readable, _, _ = select.select([process.stdout], [], [], START_LIMIT_S)
    line = process.stdout.readline() if readable else b""
    if not line:
        raise EngineError(f"the mock server did not start within {START_LIMIT_S:g} s; is this machine overloaded?")
    return line.decode().strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
