"""The port between a bench and one load worker, whatever carries the messages of `traffic.channel`.

A process of this machine is `traffic.worker_process`; a node of a cluster has a carrier of its own.
"""

from __future__ import annotations

from typing import Protocol

from traffic.clock_offset import ClockOffset


class LoadWorker(Protocol):
    """A load worker. It is dead from the moment at which it hangs up, or is silent for too long.

    is_alive: whether it may be given a load.
    """

    is_alive: bool

    @property
    def pid(self) -> int:
        """Its process id, on its machine."""
        ...

    @property
    def place(self) -> str:
        """Where it runs, in a word or two."""
        ...

    async def send(self, message: object) -> None:
        """Send it a message, which nobody hears when it is dead."""
        ...

    async def receive(self) -> object:
        """Its next message; None when it is dead. Raises what went wrong in it, which is its end too."""
        ...

    async def clock_offset(self) -> ClockOffset | None:
        """Its clock beside ours; None where both are one. Ask between loads. Raises InvalidMeasurement in time."""
        ...

    async def death(self) -> str:
        """How it died, in one line; for one that has hung up."""
        ...

    async def end(self, limit_s: float = ...) -> None:
        """Hang up and wait for its exit; kill it after limit_s, or when this wait is cancelled."""
        ...
