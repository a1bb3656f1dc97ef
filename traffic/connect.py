"""Where the network begins: how a connection to a server comes about, and which of its addresses is meant."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

Wire = TypeVar("Wire", bound=asyncio.Protocol)

_LOOPBACK = ("127.0.0.1", "::1")


class Connect(Protocol):
    """Connects an asyncio protocol to a server: over a socket, or in memory."""

    async def __call__(self, make: Callable[[], Wire], host: str, port: int) -> tuple[asyncio.Transport, Wire]:
        """What `loop.create_connection` returns. Raises OSError; how long to wait is the caller's business."""
        ...


@dataclass(frozen=True, slots=True)
class Dial:
    """Connects over TCP to the first address that accepts, whatever the host is called."""

    addresses: tuple[str, ...]

    async def __call__(self, make: Callable[[], Wire], host: str, port: int) -> tuple[asyncio.Transport, Wire]:  # noqa: ARG002 - the name was resolved before
        """See `Connect`. An error has those of the addresses before it in its cause."""
        loop = asyncio.get_running_loop()
        failures: list[OSError] = []
        for address in self.addresses:
            try:
                return await loop.create_connection(make, address, port)
            except OSError as error:
                failures.append(error)
        raise failures[-1] from (ExceptionGroup("no address accepts", failures[:-1]) if failures[:-1] else None)


async def resolve(host: str, port: int, limit_s: float) -> Dial:
    """The addresses of a host, looked up once, so that no request pays for it; one that accepts stands first.

    localhost is both loopback addresses: which of them a server has, and which the resolver names, are independent. A
    name that cannot be resolved within limit_s stays as it is, and every connection says why it fails.
    """
    addresses = _LOOPBACK if host == "localhost" else await _look_up(host, port, limit_s)
    if len(addresses) == 1:
        return Dial(addresses)
    for address in addresses:
        with suppress(OSError):
            async with asyncio.timeout(limit_s):
                await Dial((address,))(_Hello, host, port)
            return Dial((address, *(other for other in addresses if other != address)))
    return Dial(addresses)


async def _look_up(host: str, port: int, limit_s: float) -> tuple[str, ...]:
    """Every address of a host in the resolver's order; the name itself where there is none."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return (host,)
    with suppress(OSError):
        async with asyncio.timeout(limit_s):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    return (host,)


class _Hello(asyncio.Protocol):
    """Goes as soon as it was let in."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
