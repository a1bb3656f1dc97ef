"""Ends a server when the process that started it dies, however it dies: a small program, and how to start it.

SIGKILL, the kernel's out-of-memory killer or a crash of the interpreter leave us no time to clean up, and vLLM's
processes would live on and hold the GPU (R29). So a child waits on a pipe whose write end only we hold: when the pipe
ends without a word, so have we, and it ends the server.

This file is the child's program too. Only small modules of the standard library are imported, no dataclasses among
them: 12 MB resident instead of 17, for as long as a server runs.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

TOKEN_NAME = "_SLO_BENCH_SERVER"  # noqa: S105 - names a process, opens nothing
"""The environment variable by which a server's processes are known, those in sessions of their own too."""

_PROC = Path("/proc")
_DEAD = frozenset("ZXx")
_POLL_S = 0.05
_PARENT_POLL_S = 1.0
_BIRTH_S = 1.0
_GRACE_S = 5.0
_LEAVE_S = 5.0
_KILL_S = 30.0
_CALL_LIMIT_S = 30.0
_DONE = "done"


class Member(NamedTuple):
    """A process as /proc/PID/stat has it; started: clock ticks since boot, which tells it from a later namesake."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int

    @property
    def is_alive(self) -> bool:
        """Whether it runs; a zombie that nobody reaps does not."""
        return self.state not in _DEAD


def process(pid: int) -> Member | None:
    """One process, or None."""
    with suppress(OSError, ValueError, IndexError):
        # The name in parentheses may hold anything, parentheses and spaces too.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        return Member(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))
    return None


def processes() -> list[Member]:
    """Every process of this machine that we can see."""
    pids = [int(folder.name) for folder in _PROC.iterdir() if folder.name.isdigit()]
    return [member for pid in pids if (member := process(pid)) is not None]


def members(leader: int) -> list[Member]:
    """The processes whose group or session is `leader`'s, zombies included."""
    return [member for member in processes() if leader in (member.group, member.session)]


def owned(leader: int, started: int, token: str, known: Collection[Member] = ()) -> list[Member]:
    """The living processes of a server.

    They are of the group or session that its leader leads, or carry the token in their environment, or were `known`
    before, or descend from such a process: a worker in a session of its own, with its environment overwritten by a
    title, is found by one of the four. leader and started: 0 when they are not known; a process that has the leader's
    number and another start is a stranger, and so is its group.
    """
    table = {member.pid: member for member in processes() if member.started >= started}
    is_led = leader > 0 and (leader not in table or table[leader].started == started)
    identities = {(member.pid, member.started) for member in known}
    ours = {
        pid
        for pid, member in table.items()
        if (is_led and leader in (member.group, member.session))
        or (pid, member.started) in identities
        or _carries(pid, token)
    }
    while born := {pid for pid, member in table.items() if member.parent in ours} - ours:
        ours |= born
    return [table[pid] for pid in sorted(ours) if table[pid].is_alive]


def send(member: Member, signum: int) -> None:
    """A signal to this process, and to no later one that has its number."""
    now = process(member.pid)
    if now is not None and now.started == member.started:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(member.pid, signum)


class Container(NamedTuple):
    """A container that holds a server; program: docker or podman, id_file: where it writes the container's id."""

    program: str
    id_file: Path

    @property
    def id(self) -> str | None:
        """The container's id; None before it exists."""
        with suppress(OSError):
            return self.id_file.read_text().strip() or None
        return None

    def stop(self, grace_s: float) -> None:
        """SIGTERM, grace_s of patience, SIGKILL; then remove it. Returns when that is done or has failed."""
        if (name := self.id) is not None:
            self._call("stop", "-t", str(int(grace_s)), name, limit_s=grace_s + _CALL_LIMIT_S)
            self._call("rm", "--force", name)

    def kill(self) -> None:
        """SIGKILL."""
        if (name := self.id) is not None:
            self._call("kill", name)

    def first_process(self) -> Member | None:
        """The process inside, as this machine numbers it; None before it runs."""
        if (name := self.id) is None:
            return None
        _, text = self._call("container", "inspect", "--format", "{{.State.Pid}}", name)
        return process(int(text)) if text.isdigit() and int(text) else None

    def trouble(self) -> str | None:
        """Why it cannot be said to be gone; None when it is."""
        if (name := self.id) is None:
            return None
        code, text = self._call("container", "inspect", "--format", "{{.State.Running}}", name)
        if code == 0:
            return None if text == "false" else f"container {name[:12]} still runs; end it: {self.program} rm -f {name}"
        if "no such container" in text.lower() or "no container with" in text.lower():
            return None
        return f"{self.program} does not say whether container {name[:12]} is gone: {text or f'exit code {code}'}"

    def forget(self) -> None:
        """Remove the file with the id."""
        with suppress(OSError):
            self.id_file.unlink()

    def _call(self, *arguments: str, limit_s: float = _CALL_LIMIT_S) -> tuple[int | None, str]:
        """The exit code, None when it did not end, and the last line that it wrote."""
        try:
            called = subprocess.run(
                [self.program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return None, str(error)
        lines = (called.stdout + called.stderr).split("\n")
        return called.returncode, next((line for line in reversed(lines) if line.strip()), "").strip()


class Watchdog:
    """The child that ends a server when we die.

    Start it before the server, put `token` into the server's environment, then `watch` it: so there is no moment at
    which our death leaves a server behind. log: where it says what it did. grace_s: from SIGTERM to SIGKILL. Raises
    OSError when it cannot be started.
    """

    def __init__(
        self, token: str, *, log: IO[bytes], container: Container | None = None, grace_s: float = _GRACE_S
    ) -> None:
        self.token = token
        more = [] if container is None else [container.program, str(container.id_file.absolute())]
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), token, str(grace_s), *more],
            stdin=subprocess.PIPE,  # its write end is closed on exec: the server does not inherit it
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def watch(self, leader: Member) -> None:
        """Name the server's leader."""
        self._say(f"{leader.pid} {leader.started}")

    def stand_down(self) -> None:
        """The server is gone: there is nothing left to watch. Returns when the child is gone too."""
        self._say(_DONE)
        if self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.close()
        try:
            self._child.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _say(self, word: str) -> None:
        if self._child.stdin is not None and not self._child.stdin.closed:
            with suppress(OSError):  # somebody killed it; the server is still stopped by us
                self._child.stdin.write(f"{word}\n".encode())
                self._child.stdin.flush()


def _carries(pid: int, token: str) -> bool:
    if not token:
        return False
    with suppress(OSError):
        return f"{TOKEN_NAME}={token}".encode() in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def _wait_for_the_end(pipe: int, parent: int) -> list[str]:
    """What was said until the pipe ended, `parent` was no longer our parent, or we were told to stand down.

    The parent is asked for as well: a process that it forked, a load worker say, may hold the pipe open longer.
    """
    said = b""
    while _DONE not in (words := said.decode().splitlines()):
        if select.select([pipe], [], [], _PARENT_POLL_S)[0]:
            data = os.read(pipe, 4096)
            if not data:
                break
            said += data
        elif os.getppid() != parent:
            break
    return words


def _end_server(leader: int, started: int, token: str, grace_s: float) -> bool:
    """SIGTERM to the leader, or to all where it is gone; patience; then SIGKILL until nothing lives. Whether it did.

    A server whose leader was not named yet may be about to be born: it is waited for a second.
    """
    ours = owned(leader, started, token)
    for member in [each for each in ours if each.pid == leader] or ours:
        send(member, signal.SIGTERM)
    began_s = time.monotonic()
    waited_s = 0.0
    while (ours := owned(leader, started, token, ours)) or (not leader and waited_s < _BIRTH_S):
        waited_s = time.monotonic() - began_s
        if waited_s > grace_s + _KILL_S:
            return False
        if waited_s > grace_s:
            for member in ours:
                send(member, signal.SIGKILL)
        time.sleep(_POLL_S)
    return True


def main(argv: list[str]) -> int:
    """The child: wait, and end the server unless told to stand down.

    Arguments: our parent, the token, the grace in seconds and, of a container, the program and the file with its id.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # whoever ends our parent by these gives it time to clean up itself
    parent, token, grace, *rest = argv
    grace_s = float(grace)
    words = _wait_for_the_end(0, int(parent))
    if _DONE in words:
        return 0
    leader, started = (int(number) for number in words[0].split()) if words else (0, 0)
    sys.stderr.write("slo-bench's watchdog: slo-bench died without stopping this server; ending it\n")
    container = Container(rest[0], Path(rest[1])) if rest else None
    if container is not None:
        container.stop(grace_s)
    is_gone = _end_server(leader, started, token, grace_s)
    if container is not None:
        container.stop(0)  # it may have come to be meanwhile
        container.forget()
    if not is_gone:
        pids = ", ".join(str(member.pid) for member in owned(leader, started, token))
        sys.stderr.write(f"slo-bench's watchdog: processes {pids} are still there after SIGKILL; end them\n")
    return 0 if is_gone else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
