"""One load worker, as the bench sees it: a process and a channel to it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO, Self

from traffic.channel import Channel, Failed
from traffic.clock import running_clock
from traffic.clock_offset import ClockOffset
from traffic.errors import InvalidMeasurement

READY_LIMIT_S = 60.0
"""A worker that has not started, or not taken its part, within this time never will."""

EXIT_LIMIT_S = 5.0
_POLL_S = 0.02
_TEXT_CHARS = 200

_PROGRAM = """\
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from traffic.worker import main
main(sys.argv[1])
"""
"""What a worker runs. Ctrl-C at a terminal reaches all its processes, and it is the bench that ends the load. Modules
are found where this process finds them, whatever folder it was started in."""


class WorkerProcess:
    """A load worker. It is dead from the moment at which it hangs up."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, said: IO[bytes]) -> None:
        self._process = process
        self._channel = channel
        self._said = said
        self.is_alive = True

    @classmethod
    async def start(cls) -> Self:
        """Start a process. Raises InvalidMeasurement when this machine allows no more."""
        ours, theirs = socket.socketpair()
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it lasts as long as the process
        with theirs:
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 - it returns as soon as the program runs
                    [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), json.dumps(sys.path)],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                )
            except OSError as error:
                ours.close()
                reason = (error.strerror or str(error)).lower()
                raise InvalidMeasurement(f"a load worker did not start ({reason}): lower --load-workers") from None
        return cls(process, await Channel.over(ours), said)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def place(self) -> str:
        """Where it runs."""
        return "this machine"

    async def send(self, message: object) -> None:
        """Send it a message, which nobody hears when it is dead."""
        with suppress(ConnectionError):
            await self._channel.send(message)

    async def receive(self) -> object:
        """Its next message; None when it is dead. Raises what went wrong in it, which is its end too."""
        message = await self._channel.receive()
        self.is_alive = message is not None and not isinstance(message, Failed)
        if isinstance(message, Failed):
            raise message.error
        return message

    async def clock_offset(self) -> ClockOffset | None:
        """None: all processes of a machine share one clock."""
        return None

    async def death(self) -> str:
        """How it died, in one line; for one that has hung up."""
        await self._exit(EXIT_LIMIT_S)
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().decode(errors="replace").splitlines()]
        words = next((f": {line[:_TEXT_CHARS]}" for line in reversed(lines) if line), "")
        return f"a load worker died (exit {self._process.returncode}{words})"

    async def end(self, limit_s: float = EXIT_LIMIT_S) -> None:
        """Hang up and wait for its exit; kill it after limit_s, or when this wait is cancelled."""
        try:
            await self._exit(limit_s)
        finally:
            self._said.close()

    async def _exit(self, limit_s: float) -> None:
        self.is_alive = False
        self._channel.close()
        clock = running_clock()
        deadline_s = clock.now_s() + limit_s
        try:
            while self._process.poll() is None and clock.now_s() < deadline_s:  # noqa: ASYNC110 - an exit sets no event
                await asyncio.sleep(_POLL_S)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
