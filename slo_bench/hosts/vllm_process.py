"""A server's processes: started as one group, watched, stopped for certain; and what its log says it died of.

vLLM is several processes with changed titles, some of which outlive their parent. So nothing is looked up by name: the
server leads a session of its own, and whatever belongs to that session is the server.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from slo_bench.hosts.watchdog import TOKEN_NAME, Container, Member, Watchdog, members, owned, process, processes, send
from traffic.errors import EngineError
from traffic.sse import one_line

__all__ = [
    "LOOPBACK",
    "Member",
    "ServerProcess",
    "hold_port",
    "is_free",
    "listener",
    "members",
    "port_becomes_free",
    "root_cause",
    "text_of",
]

LOOPBACK = "127.0.0.1"

_LISTENING = "0A"  # as /proc/net/tcp writes it
_POLL_S = 0.05
_AFTERMATH_S = 2.0
_LOG_BYTES = 4_000_000


class ServerProcess:
    """A program in its own session and process group, with stdout and stderr in a log file that is appended to.

    Its own session keeps a Ctrl-C in our terminal from it: it is stopped by us, after its load. Until `stop` has ended
    the leader is not reaped, so that its number, which is the group's, cannot become somebody else's. A watchdog ends
    it when we die without a `stop`. container: what the program runs the server in, when it does; it is stopped too.
    Raises EngineError when the program cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], log_path: Path, container: Container | None = None
    ) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = log_path
        self._owner = os.getpid()
        self._is_over = False
        self._container = container
        self._token = secrets.token_hex(16)
        self._known: list[Member] = []
        self._inside: Member | None = None
        with log_path.open("ab") as log:
            self._log_start = self._told_to = log.tell()
            self._watchdog = _started_watchdog(self._token, log, container)
            try:
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**env, TOKEN_NAME: self._token},
                    start_new_session=True,
                )
            except OSError as error:
                self._watchdog.stand_down()
                raise EngineError(f"cannot start {command[0]}: {os.strerror(error.errno or 0).lower()}") from None
        leader = process(self._popen.pid)
        self._started = 0 if leader is None else leader.started
        if leader is not None:
            self._watchdog.watch(leader)
        atexit.register(self._kill_at_exit)

    @property
    def pid(self) -> int:
        """The leader's process id; the group's and the session's too."""
        return self._popen.pid

    def exit_code(self) -> int | None:
        """The leader's exit code, minus the signal that ended it, or None while it runs. Does not reap it."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        try:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return self._popen.poll()
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def pids(self) -> frozenset[int]:
        """Every living process of the server, those in a container included. Asks the container's program once."""
        if self._container is not None and self._inside is None:
            self._inside = self._container.first_process()
        inside = [] if self._inside is None else [self._inside]
        found = owned(self.pid, self._started, self._token, [*self._known, *inside])
        return frozenset(member.pid for member in found)

    def log_text(self) -> str:
        """What it has written, or the last 4 MB of that."""
        with self._log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _LOG_BYTES))
            return log.read().decode("utf-8", errors="replace")

    def new_log_text(self) -> str:
        """What it has written since the last call, or the last 4 MB of that."""
        with self._log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._told_to, size - _LOG_BYTES))
            self._told_to = size
            return log.read().decode("utf-8", errors="replace")

    def death(self) -> str:
        """Why it ended: the log's root cause and how the leader exited."""
        code = self.exit_code()
        how = "" if code is None else f" (exit code {code})"
        if code is not None and code < 0:
            how = f" (killed by {signal.Signals(-code).name})"
        return f"{root_cause(self.log_text())}{how}"

    async def stop(self, *, grace_s: float = 15.0, kill_s: float = 15.0) -> None:
        """SIGTERM to the leader, grace_s of patience, SIGKILL to the group, then wait for every process to be gone.

        Being cancelled ends the patience, not the work: the group is killed at once and CancelledError goes on after
        it is gone. Raises EngineError when a process is still there kill_s after SIGKILL.
        """
        stopping = asyncio.ensure_future(self._stop(grace_s, kill_s))
        was_cancelled = False
        while not stopping.done():
            try:
                await asyncio.wait({stopping})
            except asyncio.CancelledError:
                was_cancelled = True
                self.kill()
                if self._container is not None:
                    asyncio.get_running_loop().run_in_executor(None, self._container.kill)
        stopping.result()
        if was_cancelled:
            raise asyncio.CancelledError

    def kill(self) -> None:
        """SIGKILL to whatever lives of the server."""
        if self._is_over:
            return
        for member in self._living():
            send(member, signal.SIGKILL)

    async def _stop(self, grace_s: float, kill_s: float) -> None:
        if self._is_over:
            return
        self._living()  # workers that leave the session and outlive their parent are known from now on
        if self._container is not None:
            await asyncio.to_thread(self._container.stop, grace_s)
        elif self.exit_code() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        await _becomes_true(lambda: self.exit_code() is not None, grace_s)
        await _becomes_true(lambda: not self._living(), min(grace_s, _AFTERMATH_S))

        def is_empty() -> bool:
            self.kill()  # again, for what was born meanwhile
            return not self._living()

        if not await _becomes_true(is_empty, kill_s):
            pids = ", ".join(str(member.pid) for member in self._living())
            raise EngineError(f"the server's processes {pids} are still there {kill_s:g} s after SIGKILL; end them")
        if self._container is not None:
            await self._prove_gone(self._container)
        self._popen.wait()
        self._is_over = True
        self._watchdog.stand_down()
        atexit.unregister(self._kill_at_exit)

    async def _prove_gone(self, container: Container) -> None:
        await asyncio.to_thread(container.stop, 0)  # its program may have made it after the first stop
        if (trouble := await asyncio.to_thread(container.trouble)) is not None:
            raise EngineError(trouble)
        container.forget()

    def _living(self) -> list[Member]:
        self._known = owned(self.pid, self._started, self._token, self._known)
        return self._known

    def _kill_at_exit(self) -> None:
        if os.getpid() == self._owner:
            self.kill()  # a container is the watchdog's: we have no time for its program


def _started_watchdog(token: str, log: IO[bytes], container: Container | None) -> Watchdog:
    try:
        return Watchdog(token, log=log, container=container)
    except OSError as error:
        raise EngineError(f"cannot start a watchdog for the server: {os.strerror(error.errno or 0).lower()}") from None


def hold_port() -> tuple[socket.socket, int]:
    """A free loopback port and the socket that holds it until it is closed; nothing can listen there meanwhile."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.bind((LOOPBACK, 0))
    return holder, int(holder.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server could listen on the loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT are no listener
        probe.bind((LOOPBACK, port))
        return True
    return False


async def port_becomes_free(port: int, limit_s: float) -> bool:
    """Whether nobody listens on the loopback port any more, within limit_s."""
    return await _becomes_true(lambda: is_free(port), limit_s)


def listener(port: int) -> int | None:
    """The process that listens on the loopback port, or on all addresses; None where it cannot be seen."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    for member in processes() if sockets else ():
        with suppress(OSError):
            for descriptor in Path(f"/proc/{member.pid}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in sockets:
                        return member.pid
    return None


async def _becomes_true(condition: Callable[[], bool], limit_s: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    while not condition():
        if loop.time() >= deadline_s:
            return False
        await asyncio.sleep(_POLL_S)
    return True


_PREFIX = re.compile(
    r"^(?:\((?P<process>[^()\s]+) pid=\d+\) ?)?(?:(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failure)(?:: .*)?")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_WRAPPERS = (
    "Engine core initialization failed",
    "EngineCore failed to start",
    "EngineCore encountered an issue",
    "WorkerProc initialization failed",
    "WorkerProc failed to start",
    "Executor failed",
)
_SYMPTOMS = (
    "Free memory on device",
    "No available memory for the cache blocks",
    "To serve at least one request",
    "Error in memory profiling",
    "CUDA out of memory",
    "NVIDIA driver on your system is too old",
    "unsupported display driver",
    "No CUDA GPUs are available",
    "Failed to infer device type",
    "Address already in use",
    "exited unexpectedly",
    "died unexpectedly",
    "docker: ",
    ": error: ",
)
_UNFINISHED = re.compile(r"(?:validation errors? for \S+|:)$")
_ENGINE = ("EngineCore", "Worker", "VLLM::")
_QUIET_LEVELS = ("DEBUG", "INFO", "WARNING")


def root_cause(log_text: str) -> str:
    """The one line of a server's log that says why it died.

    The last lines are a wrapper ("See root cause above"). So, in this order: the first exception of an engine or
    worker process; the first exception of the last chain in any other process; a known symptom; the last line with an
    error; the last line.
    """
    lines = [line for line in log_text.splitlines() if line.strip()]
    engine, other = _exceptions(lines)
    symptoms = (text for _, text in map(_split, lines) if any(symptom in text for symptom in _SYMPTOMS))
    said = (pair for pair in map(_split, reversed(lines)) if not pair[1].startswith((" ", "Traceback")))
    errors = (text for level, text in said if level == "ERROR" or text.startswith("ERROR"))
    rest = (_split(line)[1] for line in reversed(lines))
    for candidates in (engine, reversed(other), symptoms, errors, rest):
        for text in candidates:
            if not any(wrapper in text for wrapper in _WRAPPERS):
                return one_line(text)
    return "it wrote nothing to its log"


def _exceptions(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The exception that began each chain of tracebacks: of engine and worker processes, and of the others."""
    engine: list[str] = []
    other: list[str] = []
    is_chained = False
    for index, line in enumerate(lines):
        match = _PREFIX.match(line)
        text = line[match.end() :] if match else line
        if text.startswith(_CHAINED):
            is_chained = True
        if match and match["level"] in _QUIET_LEVELS:
            continue
        if not _EXCEPTION.fullmatch(text):
            continue
        if not is_chained and not any(wrapper in text for wrapper in _WRAPPERS):
            more = _split(lines[index + 1])[1] if _UNFINISHED.search(text) and index + 1 < len(lines) else ""
            is_engine = bool(match and match["process"] and match["process"].startswith(_ENGINE))
            (engine if is_engine else other).append(f"{text} {more.strip()}".strip())
        is_chained = False
    return engine, other


def text_of(line: str) -> str:
    """What a log line says, without the prefixes that vLLM puts before it."""
    return _split(line)[1]


def _split(line: str) -> tuple[str | None, str]:
    """A line's level and its text without the prefixes that vLLM puts before it."""
    match = _PREFIX.match(line)
    return (match["level"], line[match.end() :]) if match else (None, line)
