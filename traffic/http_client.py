"""The seam to the network, and the one place where what a transport can do wrong becomes an `End` and a short text.

Texts that blame this machine begin with "client: ".
"""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Protocol

import httpx2 as httpx

from traffic.connect import Connect
from traffic.errors import UsageError
from traffic.http_pool import PoolTransport
from traffic.records import End
from traffic.sse import error_message, one_line
from traffic.wire_pool import WirePool

CLIENT_FAULT = "client: "
FAULTS = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError)
"""Everything that a client raises when the network, the server or this machine fails it."""

_CLIENT_ERRNOS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.ENOBUFS, errno.ENOMEM)
)
_WORDS = (
    (httpx.ConnectError, "cannot connect"),
    (httpx.RemoteProtocolError, "the server closed the connection or broke HTTP"),
    (httpx.NetworkError, "the connection broke"),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long to wait, in seconds.

    connect_s: for a connection. stall_s: for the next byte, the first one included. total_s: for one whole answer.
    call_s: for a call beside the load. The defaults only end what nobody waits for: a probe has its own deadline.
    """

    connect_s: float = 10.0
    stall_s: float = 120.0
    total_s: float = 1800.0
    call_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Client:
    """Two ways to one server. calls: httpx2, for the pages beside the load. wires: for what is measured."""

    calls: httpx.AsyncClient
    wires: WirePool

    async def aclose(self) -> None:
        """Close every connection."""
        self.wires.close()
        await self.calls.aclose()


class BuildClient(Protocol):
    """Where another network comes in."""

    def __call__(
        self, *, headers: Mapping[str, str], bounds: Bounds, tls: ssl.SSLContext, keep_alive: bool, connect: Connect
    ) -> Client:
        """A client without limits on connections; keep_alive false: each request has a connection of its own."""
        ...


def build_client(
    *,
    headers: Mapping[str, str],
    bounds: Bounds,
    tls: ssl.SSLContext,
    keep_alive: bool,
    connect: Connect,
) -> Client:
    """httpx2 over its own pool and, for what is measured, ours; `connect` makes the connections of both.

    No limit on connections: a request that waits for one would make the load a closed loop (R10). No environment: a
    proxy variable must not stand between us and the server. No cookies: they would pin all load to one replica.
    """
    calls = httpx.AsyncClient(
        headers={"Accept-Encoding": "identity", "User-Agent": "slo-bench", **headers},
        timeout=httpx.Timeout(connect=bounds.connect_s, read=bounds.stall_s, write=bounds.stall_s, pool=None),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        trust_env=False,
        transport=PoolTransport(connect, tls=tls, keep_alive=keep_alive),
    )
    return Client(calls, WirePool(connect, tls=tls, keep_alive=keep_alive, connect_s=bounds.connect_s))


def tls_context(url: httpx.URL, ca_file: Path | None) -> ssl.SSLContext:
    """How the server proves who it is: by ca_file, else by the CAs of this machine.

    Reading the CAs takes 0.1 s of the event loop, so without TLS the context trusts nobody and costs nothing.
    Raises UsageError for a CA file that cannot be used.
    """
    if url.scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise UsageError(f"cannot use the CA file {ca_file}: {one_line(str(error))}") from None


@dataclass(slots=True)
class ConnectionTrace:
    """What a transport did for one request: has_connected tells a fresh connection from a reused one."""

    has_connected: bool = False
    has_sent: bool = False

    async def __call__(self, name: str, info: Mapping[str, object]) -> None:  # noqa: ARG002 - the transport's signature
        """Called by the transport at each step."""
        if name == "connection.connect_tcp.started":
            self.has_connected = True
        elif name == "http11.send_request_headers.started":
            self.has_sent = True


def base_url(text: str) -> httpx.URL:
    """The root of a server, without /v1. Raises UsageError, which never repeats credentials."""
    if "@" in text or "?" in text:
        raise UsageError("the base URL holds credentials or a query; give the key as the API key or as a header")
    try:
        url = httpx.URL(text.strip())
    except httpx.InvalidURL:
        raise UsageError(f"{one_line(text)!r} is not a URL; give one like http://host:8000/v1") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"{one_line(text)!r} is no base URL; give one like http://host:8000/v1")
    return url.copy_with(path=url.path.rstrip("/").removesuffix("/v1").rstrip("/") or "/", fragment=None)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The same headers. Raises UsageError, without the value, for one that HTTP does not carry."""
    for name, value in headers.items():
        if not (name.isascii() and name.isprintable() and value.isascii() and value.isprintable()):
            raise UsageError(f"the value of header {name!r} has a line break or a character outside ASCII")
    return dict(headers)


def describe(error: Exception, bounds: Bounds) -> tuple[End, str]:
    """How a request ended that broke before its answer was complete, and why, in a short text."""
    fault = _client_fault(error)
    if fault is not None:
        return End.FAILED, f"{CLIENT_FAULT}{fault}"
    if isinstance(error, httpx.ConnectTimeout):
        return End.TIMED_OUT, f"no connection within {bounds.connect_s:g} s"
    if isinstance(error, httpx.TimeoutException):
        return End.TIMED_OUT, f"stalled: nothing for {bounds.stall_s:g} s"
    words = next((words for kind, words in _WORDS if isinstance(error, kind)), type(error).__name__)
    return End.FAILED, f"{words}: {_cause(error)}"


def refusal(status: int, body: str) -> str:
    """A status that is not 200, with the server's own message where it gives one."""
    message: str | None = None
    with suppress(ValueError, RecursionError):
        value = json.loads(body)
        message = error_message(value) or (one_line(body) if value else None)
    if message is None and not body.lstrip().startswith("<"):
        message = one_line(body)
    return f"HTTP {status}: {message or httpx.codes.get_reason_phrase(status) or 'no reason given'}"


def _client_fault(error: BaseException) -> str | None:
    """What this machine lacks, when that is the whole reason; None otherwise.

    Where several addresses were tried, one that refused means that this machine could connect.
    """
    errnos = {cause.errno for cause in _os_errors(error) if cause.errno}
    if not errnos or not errnos <= _CLIENT_ERRNOS:
        return None
    if errnos & {errno.EMFILE, errno.ENFILE}:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"too many open files (limit {limit}; raise it with ulimit -n)"
    if errnos & {errno.EADDRNOTAVAIL, errno.EADDRINUSE}:
        return "cannot assign requested address: no local port left (see net.ipv4.ip_local_port_range)"
    return os.strerror(min(errnos)).lower()


def _cause(error: BaseException) -> str:
    """The operating system's word where there is one, else the error's own."""
    for cause in _os_errors(error):
        if isinstance(cause, socket.gaierror):
            return "the host name is not known"
        if cause.errno and not isinstance(cause, ssl.SSLError):
            return os.strerror(cause.errno).lower()
    return one_line(str(error)) or type(error).__name__


def _os_errors(error: BaseException) -> Iterator[OSError]:
    """The operating system's errors under a chain of translations; httpcore keeps some of them in `args` only."""
    seen: set[int] = set()
    todo: list[BaseException] = [error]
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, OSError):
            yield current
        inner = [current.__cause__, current.__context__, *current.args]
        if isinstance(current, BaseExceptionGroup):
            inner.extend(current.exceptions)
        todo.extend(item for item in inner if isinstance(item, BaseException))
