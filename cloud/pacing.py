"""The provider's rate limits, kept by all of the tool's processes together.

Within a process a throttle makes calls wait for each other. Between processes (a session, its watchdog, a reaper) a
file has the times of the last call and of the last launch; it is locked for as long as it takes to read and write it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from asyncio_throttle.throttler import Throttler

from cloud.errors import CloudTrouble

__all__ = ["Pacing"]

_SLACK = 1.05
"""The provider sees our calls when they arrive, not when they leave: two that left a second apart may be closer."""

_LOCKED_BY_ANOTHER = (errno.EAGAIN, errno.EACCES)
_LOOK_S = 0.01
_LONGEST_FILE = 100


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds since the epoch; 0 where there was none yet."""

    call: float = 0.0
    launch: float = 0.0


class Pacing:
    """When the next call may leave: calls_per_s of all kinds, a launch every launch_every_s at most.

    lock_file: shared by all processes that use one account. patience_s: how long a call waits for its turn. After that
    it leaves all the same: to be told "too many" costs less than a machine that nobody terminates. A launch does not
    leave then. now: the clock, which the processes must share.
    """

    def __init__(
        self,
        calls_per_s: float = 1.0,
        launch_every_s: float = 12.0,
        *,
        lock_file: Path,
        patience_s: float = 60.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._call_every_s = _SLACK / calls_per_s
        self._launch_every_s = _SLACK * launch_every_s
        self._lock_file = lock_file
        self._patience_s = patience_s
        self._now = now
        self._throttle = Throttler(rate_limit=1, period=self._call_every_s)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Wait for the turn of one call, then make it inside."""
        await self._wait_for_turn(is_launch=False)
        yield

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[None]:
        """Wait for the turn of one launch, then make it inside; raises CloudTrouble when the turn does not come."""
        if not await self._wait_for_turn(is_launch=True):
            raise CloudTrouble(
                f"other sessions have launched for {self._patience_s:g} s without a pause; nothing was sent: try again"
            )
        yield

    async def _wait_for_turn(self, *, is_launch: bool) -> bool:
        """False when patience ended first."""
        try:
            async with asyncio.timeout(self._patience_s):
                async with self._throttle:
                    await self._take_turn(is_launch=is_launch)
        except TimeoutError:
            return False
        return True

    async def _take_turn(self, *, is_launch: bool) -> None:
        while True:
            try:
                wait_s = self._try(is_launch=is_launch)
            except OSError as error:
                if error.errno not in _LOCKED_BY_ANOTHER:
                    return  # a full disk, or one without locks, must not keep a machine from being terminated
                wait_s = _LOOK_S
            if wait_s <= 0:
                return
            await asyncio.sleep(wait_s)

    def _try(self, *, is_launch: bool) -> float:
        """Take the turn and return 0, or return how many seconds there are to wait before trying again."""
        self._lock_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            now, last = self._now(), _read(descriptor)
            wait_s = _left(last.call, self._call_every_s, now)
            if is_launch:
                wait_s = max(wait_s, _left(last.launch, self._launch_every_s, now))
            if wait_s <= 0:
                _write(descriptor, _Times(call=now, launch=now if is_launch else last.launch))
            return wait_s
        finally:
            os.close(descriptor)  # which unlocks


def _left(last: float, every_s: float, now: float) -> float:
    """How much of every_s is left; 0 where the last time is in the future, because the clock was set back."""
    return 0.0 if last > now else max(last + every_s - now, 0.0)


def _read(descriptor: int) -> _Times:
    try:
        call, launch = os.pread(descriptor, _LONGEST_FILE, 0).split()
        return _Times(float(call), float(launch))
    except ValueError:
        return _Times()


def _write(descriptor: int, times: _Times) -> None:
    text = f"{times.call:.6f} {times.launch:.6f}\n".encode()
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))
