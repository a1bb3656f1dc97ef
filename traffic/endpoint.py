"""One OpenAI-compatible server over HTTP: its connections, the credentials, and the calls beside what is measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2 as httpx

from traffic.connect import resolve
from traffic.errors import EngineError, UsageError
from traffic.http_client import (
    FAULTS,
    Bounds,
    BuildClient,
    Client,
    ConnectionTrace,
    base_url,
    build_client,
    checked_headers,
    describe,
    refusal,
    tls_context,
)
from traffic.recipe import EndpointRecipe
from traffic.records import Message
from traffic.wire import Limits, Sink
from traffic.wire_pool import DroppedError

_SECRET_CHARS = 8
_DROPPED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
_NO_SUCH_PAGE = (404, 405, 501)
_NO_ENTRY = (401, 403)
_OK = 200
_JSON = {"Content-Type": "application/json"}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model that a server lists; max_model_len in tokens, None where it does not say."""

    name: str
    max_model_len: int | None


class Endpoint:
    """One server: where it is, how to get in, how long to wait. An async context manager that owns the connections.

    url: with or without /v1. The API key and the headers go to the server and nowhere else: no repr and no error text
    has them, not even when the server repeats them. Raises UsageError for what cannot be a base URL or a header.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
        bounds: Bounds | None = None,
        client: BuildClient = build_client,
    ) -> None:
        self._root = base_url(url)
        self._pages: dict[str, httpx.URL] = {}
        self.bounds = bounds or Bounds()
        self._ca_file = ca_file
        self._build = client
        key = (api_key or "").strip()
        self._credentials = key, dict(headers or {})
        own = {"Authorization": f"Bearer {key}"} if key else {}
        self._headers = checked_headers(own | dict(headers or {}))
        words = [word for value in (headers or {}).values() for word in (value, *value.split())]
        secrets = {key, *(word for word in words if len(word) >= _SECRET_CHARS)} - {""}
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._heads: dict[str, bytes] = {}
        self._pooled: Client | None = None
        self._unpooled: Client | None = None
        self.resent = 0
        """Requests sent once more because an idle connection had been closed under them."""

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"

    @property
    def url(self) -> str:
        """The server's root, without /v1."""
        return str(self._root).rstrip("/")

    async def __aenter__(self) -> Self:
        tls = tls_context(self._root, self._ca_file)
        host, port = self._root.raw_host.decode("ascii"), self._root.port or _PORTS[self._root.scheme]
        dial = await resolve(host, port, self.bounds.connect_s)
        self._pooled, self._unpooled = (
            self._build(headers=self._headers, bounds=self.bounds, tls=tls, keep_alive=keep_alive, connect=dial)
            for keep_alive in (True, False)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clients, self._pooled, self._unpooled = (self._pooled, self._unpooled), None, None
        for client in clients:
            if client is not None:
                await client.aclose()

    def recipe(self) -> EndpointRecipe:
        """How another process reaches the same server."""
        api_key, headers = self._credentials
        return EndpointRecipe(
            url=self.url,
            api_key=api_key,
            headers=headers,
            ca_file=self._ca_file,
            bounds=self.bounds,
            client=self._build,
        )

    def redact(self, text: str) -> str:
        """`text` without the secrets, and without the beginning of one that was cut off at the end of the text."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
            for length in range(len(secret) - 1, 3, -1):
                if text.endswith(f"{secret[:length]}…"):
                    text = f"{text[: -length - 1]}***…"
        return text

    async def send(
        self, method: str, path: str, body: bytes | None = None, *, limit_s: float | None = None
    ) -> httpx.Response:
        """Send a request and return its response, unread; the caller closes it. Raises one of FAULTS.

        When a connection that had been idle is closed before a byte of the answer, the server gave it up while the
        request was on its way (R11): the request goes out once more, on a fresh connection. limit_s: bound of every
        step, in place of connect_s and stall_s.
        """
        pooled, unpooled = self._clients()
        trace = ConnectionTrace()
        try:
            return await self._send_on(pooled.calls, method, path, body, trace=trace, limit_s=limit_s)
        except _DROPPED:
            if trace.has_connected or not trace.has_sent:
                raise
        self.resent += 1
        return await self._send_on(unpooled.calls, method, path, body, trace=trace, limit_s=limit_s)

    async def exchange(self, path: str, body: bytes, sink: Sink, limits: Limits) -> float:
        """Post a measured request and let `sink` read the response; the loop time at which that was over.

        Raises one of FAULTS; TimeoutError at the limit of the whole. As with `send`, it goes out once more after R11,
        if nothing of a response had come.
        """
        pooled, unpooled = self._clients()
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = self._head(pooled.calls, path)
        request = b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)
        try:
            return await pooled.wires.exchange(self._root, request, sink, limits)
        except DroppedError:
            self.resent += 1
        return await unpooled.wires.exchange(self._root, request, sink, limits)

    async def models(self) -> list[ModelCard] | None:
        """What /v1/models lists; None where there is no such page. Raises EngineError, UsageError for a wrong key."""
        answer = await self._call("GET", "/v1/models")
        if answer is None:
            return None
        entries = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(entries, list):
            raise EngineError(f"{self.url}/v1/models is no list of models; is this an OpenAI-compatible server?")
        named = [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
        return [ModelCard(entry["id"], _length(entry.get("max_model_len"))) for entry in named]

    async def version(self) -> str | None:
        """What /version says; None where there is no such page. Raises EngineError."""
        answer = await self._call("GET", "/version")
        version = answer.get("version") if isinstance(answer, dict) else None
        return version if isinstance(version, str) else None

    async def count_tokens(self, model: str, messages: Sequence[Message]) -> int | None:
        """The server's count of a prompt, chat template included; None without /tokenize. Raises EngineError."""
        body = {"model": model, "messages": wire_messages(messages), "add_generation_prompt": True}
        answer = await self._call("POST", "/tokenize", json.dumps(body).encode())
        return _length(answer.get("count")) if isinstance(answer, dict) else None

    async def complete(self, fields: Mapping[str, object], *, limit_s: float) -> object:
        """The JSON of one whole completion; None without /v1/completions. Raises EngineError, UsageError."""
        return await self._call("POST", "/v1/completions", json.dumps(fields).encode(), limit_s=limit_s)

    async def metrics(self) -> str | None:
        """The Prometheus text of /metrics; None where there is no such page. Raises EngineError."""
        status, text = await self._fetch("GET", "/metrics")
        return text if status == _OK else None

    async def is_healthy(self) -> bool:
        """Whether /health answers 200; a server that cannot be reached is not healthy."""
        try:
            status, _ = await self._fetch("GET", "/health")
        except EngineError:
            return False
        return status == _OK

    async def _call(self, method: str, path: str, body: bytes | None = None, *, limit_s: float | None = None) -> object:
        """The JSON of a page; None where the server does not have the page."""
        status, text = await self._fetch(method, path, body, limit_s=limit_s)
        if status in _NO_SUCH_PAGE:
            return None
        if status in _NO_ENTRY:
            raise UsageError(f"{self.url} refuses the API key (HTTP {status}); give the right one")
        if status != _OK:
            raise EngineError(f"{self.url}{path}: {self.redact(refusal(status, text))}")
        with suppress(ValueError, RecursionError):
            answer: object = json.loads(text)
            return answer
        raise EngineError(f"{self.url}{path} answers with something that is not JSON; is this the right base URL?")

    async def _fetch(
        self, method: str, path: str, body: bytes | None = None, *, limit_s: float | None = None
    ) -> tuple[int, str]:
        limit_s = self.bounds.call_s if limit_s is None else limit_s
        try:
            async with asyncio.timeout(limit_s), aclosing(await self.send(method, path, body, limit_s=limit_s)) as got:
                await got.aread()
                return got.status_code, got.text
        except FAULTS as error:
            cause = f"no answer within {limit_s:g} s"
            if not isinstance(error, TimeoutError | httpx.TimeoutException):
                _, cause = describe(error, self.bounds)
            text = f"cannot reach {self.url}: {self.redact(cause)}; is the server running, and is the address right?"
            raise EngineError(text) from None

    async def _send_on(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        body: bytes | None,
        *,
        trace: ConnectionTrace,
        limit_s: float | None,
    ) -> httpx.Response:
        request = client.build_request(
            method,
            self._page(path),
            content=body,
            headers={} if body is None else _JSON,
            timeout=client.timeout if limit_s is None else limit_s,
            extensions={"trace": trace},
        )
        return await client.send(request, stream=True)

    def _clients(self) -> tuple[Client, Client]:
        """The one that keeps connections, and the one that makes a new one for each request."""
        if self._pooled is None or self._unpooled is None:
            raise RuntimeError("enter the endpoint before sending through it")
        return self._pooled, self._unpooled

    def _page(self, path: str) -> httpx.URL:
        url = self._pages.get(path)
        if url is None:
            url = self._pages[path] = self._root.copy_with(path=self._root.path.rstrip("/") + path)
        return url

    def _head(self, client: httpx.AsyncClient, path: str) -> bytes:
        """The head of every post to a page, as httpx2 would write it, up to the length of the body."""
        request = client.build_request("POST", self._page(path), headers=_JSON)
        lines = [b"POST %s HTTP/1.1" % request.url.raw_path]
        lines += [b"%s: %s" % header for header in request.headers.raw if header[0].lower() != b"content-length"]
        return b"\r\n".join([*lines, b""])


def wire_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as the API wants them."""
    return [{"role": message.role, "content": message.text} for message in messages]


def _length(value: object) -> int | None:
    """A number of tokens, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
