"""One OpenAI-compatible server over HTTP: the requests that are measured, and the few calls beside them.

`Endpoint` owns the connections, the credentials and the bounds; `HttpEngine` sends requests through it and reads the
streams. Everything that a transport can do wrong is translated here, once, into an `End` and a short text. Texts that
blame this machine begin with "client: ".
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from types import TracebackType
from typing import Protocol

import httpx2 as httpx

from traffic.errors import EngineError, UsageError
from traffic.records import End, Flight, Message, Request
from traffic.sse import AnswerReader, error_message, one_line

KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn closes its end."""
CLIENT_FAULT = "client: "

_DRAIN_S = 1.0
_BODY_BYTES = 65_536
_SECRET_CHARS = 6
_JSON = {"Content-Type": "application/json"}
_CLIENT_ERRNOS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.ENOBUFS, errno.ENOMEM)
)
_FAULTS = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError)
_DROPPED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


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


class BuildClient(Protocol):
    """The seam to the network.

    keep_alive false: every request gets a connection of its own. A transport behind it calls the `trace` extension as
    httpcore does ("connection.connect_tcp.started", "http11.send_request_headers.started"); without that no request
    is ever sent twice.
    """

    def __call__(
        self, *, headers: Mapping[str, str], bounds: Bounds, ca_file: Path | None, keep_alive: bool
    ) -> httpx.AsyncClient:
        """A client without limits on connections."""
        ...


def build_client(
    *,
    headers: Mapping[str, str],
    bounds: Bounds,
    ca_file: Path | None = None,
    keep_alive: bool = True,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """httpx2 with its own pool.

    No limit on connections: a request that waits for one would make the load a closed loop (R10). No environment: a
    proxy variable must not stand between us and the server. No cookies: they would pin all load to one replica.
    """
    return httpx.AsyncClient(
        headers={"Accept-Encoding": "identity", "User-Agent": "slo-bench", **headers},
        timeout=httpx.Timeout(connect=bounds.connect_s, read=bounds.stall_s, write=bounds.stall_s, pool=None),
        limits=httpx.Limits(
            max_connections=None,
            max_keepalive_connections=None if keep_alive else 0,
            keepalive_expiry=KEEP_ALIVE_S,
        ),
        verify=True if ca_file is None else ssl.create_default_context(cafile=ca_file),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        trust_env=False,
        transport=transport,
    )


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model that a server lists; max_model_len in tokens, None where it does not say."""

    name: str
    max_model_len: int | None


class Endpoint:
    """One server: where it is, how to get in, and how long to wait.

    base_url: with or without /v1. The API key and the headers go to the server and nowhere else: no repr and no error
    text has them, not even when the server repeats them. Raises UsageError for what cannot be a base URL or a header.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
        client: BuildClient = build_client,
    ) -> None:
        self._root = _root(base_url)
        self._address = self._root
        self._bounds = bounds
        self._ca_file = ca_file
        self._build = client
        own = {} if api_key is None else {"Authorization": f"Bearer {api_key.strip()}"}
        self._headers = _checked_headers(own | dict(headers or {}))
        self._secrets = [value for value in (headers or {}).values() if len(value) >= _SECRET_CHARS]
        self._secrets += [api_key.strip()] if api_key and api_key.strip() else []
        self._pooled: httpx.AsyncClient | None = None
        self._unpooled: httpx.AsyncClient | None = None
        self.resent = 0
        """Requests sent once more because an idle connection had been closed under them."""

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"

    @property
    def url(self) -> str:
        """The server's root, without /v1."""
        return str(self._root).rstrip("/")

    @property
    def bounds(self) -> Bounds:
        """How long it waits."""
        return self._bounds

    async def __aenter__(self) -> Endpoint:
        self._address = await _settle_localhost(self._root, self._bounds.connect_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in (self._pooled, self._unpooled):
            if client is not None:
                await client.aclose()
        self._pooled = self._unpooled = None

    def redact(self, text: str) -> str:
        """`text` without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    async def send(
        self, method: str, path: str, body: bytes | None = None, *, limit_s: float | None = None
    ) -> httpx.Response:
        """Send a request and return its response, unread; the caller closes it. Raises what httpx2 raises.

        When a connection that had been idle is closed before a byte of the answer, the server has closed it as idle
        while the request was on its way (R11): the request goes out once more, on a fresh connection.
        """
        if self._pooled is None:
            self._pooled = self._client(keep_alive=True)
        trace = _Trace()
        try:
            return await self._send(self._pooled, method, path, body, trace, limit_s)
        except _DROPPED:
            if trace.has_connected or not trace.has_sent:
                raise
        self.resent += 1
        if self._unpooled is None:
            self._unpooled = self._client(keep_alive=False)
        return await self._send(self._unpooled, method, path, body, _Trace(), limit_s)

    async def models(self) -> list[ModelCard] | None:
        """What /v1/models lists; None where there is no such page. Raises EngineError, or UsageError for a bad key."""
        answer = await self._call("GET", "/v1/models")
        if answer is None:
            return None
        entries = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(entries, list):
            raise EngineError(f"{self.url}/v1/models is no list of models; is this an OpenAI-compatible server?")
        named = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
        return [ModelCard(entry["id"], _length(entry.get("max_model_len"))) for entry in named]

    async def version(self) -> str | None:
        """What /version says; None where it does not exist. Raises EngineError."""
        answer = await self._call("GET", "/version")
        version = answer.get("version") if isinstance(answer, dict) else None
        return version if isinstance(version, str) else None

    async def count_tokens(self, model: str, messages: Sequence[Message]) -> int | None:
        """The server's count of a prompt, chat template included; None where it has no /tokenize. Raises EngineError."""
        body = {"model": model, "messages": wire_messages(messages), "add_generation_prompt": True}
        answer = await self._call("POST", "/tokenize", json.dumps(body).encode())
        return _length(answer.get("count")) if isinstance(answer, dict) else None

    async def metrics(self) -> str | None:
        """The Prometheus text of /metrics; None where it does not exist. Raises EngineError."""
        status, text = await self._fetch("GET", "/metrics")
        return text if status == httpx.codes.OK else None

    async def is_healthy(self) -> bool:
        """Whether /health answers 200; a server that cannot be reached is not healthy."""
        try:
            status, _ = await self._fetch("GET", "/health")
        except EngineError:
            return False
        return status == httpx.codes.OK

    async def _call(self, method: str, path: str, body: bytes | None = None) -> object:
        """The JSON of a page; None where the server does not have the page."""
        status, text = await self._fetch(method, path, body)
        if status in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED):
            return None
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise UsageError(f"{self.url} refuses the API key (HTTP {status}); give the right one")
        if status != httpx.codes.OK:
            raise EngineError(f"{self.url}{path}: {self.redact(refusal(status, text))}")
        with suppress(ValueError, RecursionError):
            answer: object = json.loads(text)
            return answer
        raise EngineError(f"{self.url}{path} answers with something that is not JSON; is this the right base URL?")

    async def _fetch(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        limit_s = self._bounds.call_s
        try:
            async with asyncio.timeout(limit_s), aclosing(await self.send(method, path, body, limit_s=limit_s)) as got:
                await got.aread()
                return got.status_code, got.text
        except TimeoutError:
            raise EngineError(f"{self.url}{path} did not answer within {limit_s:g} s") from None
        except _FAULTS as error:
            _, cause = describe(error, self._bounds)
            text = f"cannot reach {self.url}: {self.redact(cause)}; is the server running, and is the address right?"
            raise EngineError(text) from None

    def _client(self, *, keep_alive: bool) -> httpx.AsyncClient:
        try:
            return self._build(headers=self._headers, bounds=self._bounds, ca_file=self._ca_file, keep_alive=keep_alive)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"cannot use the CA file {self._ca_file}: {one_line(str(error))}") from None

    async def _send(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        body: bytes | None,
        trace: _Trace,
        limit_s: float | None,
    ) -> httpx.Response:
        request = client.build_request(
            method,
            self._address.copy_with(path=self._address.path.rstrip("/") + path),
            content=body,
            headers={"Host": self._root.netloc.decode("ascii")} | (_JSON if body is not None else {}),
            extensions={"trace": trace},
            timeout=client.timeout if limit_s is None else limit_s,
        )
        return await client.send(request, stream=True)
