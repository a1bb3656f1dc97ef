"""An event loop whose clock jumps to the next deadline whenever every task waits.

Two hours of simulated load take seconds, and two runs with one seed take exactly the same turns. Real input and output
would make the jump wrong (a byte may be on its way while the clock leaps), so sockets, pipes, subprocesses, threads and
executors are refused with an error that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar

from traffic.errors import VirtualTimeError

T = TypeVar("T")

EPOCH_UTC_S = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
"""UTC under the virtual loop is 2000-01-01T00:00:00Z plus loop time."""


class _JumpingSelector:
    """Stands where the loop polls for input: instead of waiting it moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.jump(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An asyncio loop under virtual time, starting at 0.0 s."""

    _scheduled: list[asyncio.TimerHandle]  # BaseEventLoop's own heap, by time

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now_s = 0.0
        self._selector = _JumpingSelector(self)
        # BaseEventLoop runs the timers that are due *before* now + resolution, so it must not be 0.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_now_s

    def utc_s(self) -> float:
        """Virtual POSIX seconds."""
        return EPOCH_UTC_S + self._virtual_now_s

    def cpu_s(self) -> None:
        """None: computing takes no virtual time, so no share of it either."""

    def jump(self, timeout: float | None) -> None:
        """Move the clock to the next timer; `timeout` is what the loop would have slept.

        Raises VirtualTimeError when there is no timer: nothing can ever wake the waiting tasks.
        """
        if timeout is None:
            waiting = ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self)))
            raise VirtualTimeError(f"every task waits for ever under virtual time: {waiting}")
        if timeout > 0:
            # The timer's own time, not now + timeout: adding would round, and the timer would be missed by one bit.
            self._virtual_now_s = max(self._virtual_now_s, self._scheduled[0].when())

    def _process_events(self, event_list: list[Any]) -> None:
        """No selector, so no events."""

    def _write_to_self(self) -> None:
        """Nothing sleeps for real, so nothing needs waking."""


_REFUSED = {
    "_make_socket_transport": "a socket",
    "add_reader": "a file descriptor",
    "add_writer": "a file descriptor",
    "connect_read_pipe": "a pipe",
    "connect_write_pipe": "a pipe",
    "create_connection": "a socket",
    "create_datagram_endpoint": "a socket",
    "create_server": "a listening socket",
    "create_unix_connection": "a socket",
    "create_unix_server": "a listening socket",
    "getaddrinfo": "name resolution",
    "run_in_executor": "an executor",
    "sock_accept": "a socket",
    "sock_connect": "a socket",
    "sock_recv": "a socket",
    "sock_sendall": "a socket",
    "subprocess_exec": "a subprocess",
    "subprocess_shell": "a subprocess",
}
"""The loop's doors to the real world, and what stands behind each."""


def _refusal(what: str) -> Callable[..., NoReturn]:
    def refuse(_loop: VirtualLoop, *_: Any, **__: Any) -> NoReturn:
        raise VirtualTimeError(f"{what} cannot be used under virtual time; run this on the real loop")

    return refuse


for _name, _what in _REFUSED.items():
    setattr(VirtualLoop, _name, _refusal(_what))


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine under virtual time, as asyncio.run does under real time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
