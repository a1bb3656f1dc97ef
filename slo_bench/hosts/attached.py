"""A server that somebody else runs, reached by its base URL."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from slo_bench.hosts import EngineFacts
from slo_bench.scrape import pages
from traffic.answer import NOT_STREAMED
from traffic.endpoint import Endpoint, ModelCard
from traffic.errors import EngineError, UsageError
from traffic.http_client import Bounds, BuildClient, build_client
from traffic.http_engine import HttpEngine
from traffic.recipe import EngineRecipe
from traffic.records import End, Flight, Message, Request
from traffic.server_facts import Look

_FIRST = Request(
    index=0,
    due_s=0.0,
    kind="first",
    input_tokens=16,
    output_tokens=16,
    in_cohort=False,
    messages=(Message("user", "Answer with one word: is the sky blue?"),),
)
_LONGER = replace(_FIRST, output_tokens=64)
"""Asked again when all tokens came at once: a fast server sends few of them while this machine looks away."""
_LENGTH_FIELDS = frozenset(("min_tokens", "ignore_eos"))
_USAGE_FIELD = "continuous_usage_stats"
_RETRIES = 4
"""A busy machine of ours can read several tokens at once, again and again; a proxy that collects them always does."""
_INVALID = ("HTTP 400", "HTTP 422")
_CALLERS_FAULT = ("HTTP 401", "HTTP 403", "HTTP 404")
_NAMES_SHOWN = 10
_FASTEST_TPOT_S = 0.0005
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


class AttachedHost:
    """A host for a running OpenAI-compatible server; it starts and stops nothing.

    base_url: with or without /v1. model: None takes the only one that the server lists. extra_body: merged into every
    request. metrics_urls: where the counts of each replica are, the server itself where none is given. settle_s: how
    long a server without vLLM's gauges is left alone before it counts as idle. poll_s: between two looks at the gauges.
    first_answer_s: bound of the first real request. start: see `EngineFacts`.

    Entering raises EngineError for a server that cannot be reached, breaks, or does not stream; UsageError for a wrong
    key or a model that it does not have.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
        extra_body: Mapping[str, object] | None = None,
        bounds: Bounds | None = None,
        settle_s: float = 2.0,
        poll_s: float = 0.25,
        first_answer_s: float = 120.0,
        start: int = 0,
        metrics_urls: Sequence[str] = (),
        client: BuildClient = build_client,
    ) -> None:
        self._endpoint = Endpoint(
            base_url, api_key=api_key, headers=headers, ca_file=ca_file, bounds=bounds, client=client
        )
        # Connections of their own: a look must not take one from the load. The key goes to nobody but the server.
        self._watched = [
            Endpoint(url.removesuffix("/").removesuffix("/metrics"), ca_file=ca_file, bounds=bounds, client=client)
            for url in metrics_urls
        ] or [Endpoint(base_url, api_key=api_key, headers=headers, ca_file=ca_file, bounds=bounds, client=client)]
        self._stack = AsyncExitStack()
        self._shows_counts = False
        self._wanted = model
        self._extra_body = extra_body
        self._settle_s = settle_s
        self._poll_s = poll_s
        self._first_answer_s = first_answer_s
        self._start = start
        self._tokenizes = True
        self._engine: HttpEngine | None = None
        self._facts: EngineFacts | None = None

    def __repr__(self) -> str:
        return f"AttachedHost({self._endpoint.url!r})"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._endpoint)
            card = await self._find_model()
            self._engine, takes_forced_length = await self._get_answered(card.name)
            self._facts = EngineFacts(
                kind="attached",
                model=card.name,
                max_model_len=card.max_model_len,
                version=await self._version(),
                takes_forced_length=takes_forced_length,
                start=self._start,
                details={"url": self._endpoint.url},
            )
            for endpoint in self._watched:
                await stack.enter_async_context(endpoint)
            self._shows_counts = all([await _has_counts(endpoint) for endpoint in self._watched])
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    @property
    def engine(self) -> HttpEngine:
        """Where requests go."""
        if self._engine is None:
            raise RuntimeError("enter the host before using it")
        return self._engine

    @property
    def facts(self) -> EngineFacts:
        """What is known of the server."""
        if self._facts is None:
            raise RuntimeError("enter the host before using it")
        return self._facts

    @property
    def endpoint(self) -> Endpoint:
        """The connection, for calls beside the load."""
        return self._endpoint

    @property
    def recipe(self) -> EngineRecipe:
        """How other processes send to the same server."""
        return self.engine.recipe()

    @property
    def needs_text(self) -> bool:
        """A real server needs prompts."""
        return True

    async def count_tokens(self, messages: Sequence[Message]) -> int | None:
        """The server's count of a prompt; None where it has no /tokenize, which is asked once. Raises EngineError."""
        if not self._tokenizes:
            return None
        count = await self._endpoint.count_tokens(self.facts.model, messages)
        self._tokenizes = count is not None
        return count

    def check(self) -> None:
        """Nothing is known of a server that is not ours, beyond how its requests end."""

    def look(self) -> Look | None:
        """The pages of /metrics, of all replicas at once; None where one shows no counts of vLLM."""
        return pages([endpoint.metrics for endpoint in self._watched]) if self._shows_counts else None

    def compilations(self) -> None:
        """None: its log is not ours to read."""

    async def wait_idle(self, limit_s: float) -> None:
        """Return when vLLM's gauges are zero twice in a row, or after settle_s where there are none.

        A look that fails counts as busy. Raises EngineError after limit_s.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        quiet = 0
        while True:
            busy = await self._busy()
            if busy is None:
                await asyncio.sleep(min(self._settle_s, limit_s))
                return
            quiet = 0 if busy else quiet + 1
            if quiet > 1:
                return
            if loop.time() >= deadline_s:
                raise EngineError(f"{self._endpoint.url} is not idle after {limit_s:g} s: {busy or 'looked once only'}")
            await asyncio.sleep(self._poll_s)

    async def _busy(self) -> str | None:
        """What the server is still at; empty when nothing, None when it has no gauges."""
        try:
            text = await self._endpoint.metrics()
        except EngineError as error:
            return str(error)
        counts = None if text is None else requests_in_server(text)
        if counts is None:
            return None
        running, waiting = counts
        return f"{running:g} running, {waiting:g} waiting" if running or waiting else ""

    async def _find_model(self) -> ModelCard:
        url = self._endpoint.url
        cards = await self._endpoint.models()
        if cards is None:
            if self._wanted is None:
                raise UsageError(f"{url} does not list its models; name the one to measure")
            return ModelCard(self._wanted, None)
        names = ", ".join(card.name for card in cards[:_NAMES_SHOWN]) or "none"
        if len(cards) > _NAMES_SHOWN:
            names += f" and {len(cards) - _NAMES_SHOWN} more"
        if self._wanted is None:
            if len(cards) != 1:
                raise UsageError(f"{url} has more than one model or none; name the one to measure: {names}")
            return cards[0]
        for card in cards:
            if card.name == self._wanted:
                return card
        raise UsageError(f"{url} has no model {self._wanted!r}; it has: {names}")

    async def _get_answered(self, model: str) -> tuple[HttpEngine, bool]:
        """An engine in the dialect that the server takes, and whether it honours a forced length.

        A field that the server names in a 400 or 422 is left out from then on.
        """
        refused: set[str] = set()
        retries = _RETRIES
        while True:
            forces_length = not refused & _LENGTH_FIELDS
            engine = HttpEngine(
                self._endpoint,
                model,
                extra_body=self._extra_body,
                forces_length=forces_length,
                continuous_usage=_USAGE_FIELD not in refused,
            )
            flight = await self._ask(engine, _FIRST if retries == _RETRIES else _LONGER)
            fields = {*_LENGTH_FIELDS, _USAGE_FIELD} if flight.error.startswith(_INVALID) else set()
            named = {field for field in fields if field in flight.error} - refused
            came_at_once = _came_at_once(flight)
            if named:
                refused |= named
            elif flight.end is End.FINISHED and came_at_once and retries:
                retries -= 1  # a stall of ours can join what the server sent apart
            else:
                break
        self._judge(flight, came_at_once=came_at_once)
        is_short = not flight.output_tokens_estimated and flight.output_tokens < _FIRST.output_tokens
        return engine, forces_length and not is_short

    async def _ask(self, engine: HttpEngine, request: Request) -> Flight:
        flight = Flight()
        try:
            async with asyncio.timeout(self._first_answer_s):
                await engine.generate(request, flight)
        except TimeoutError:
            url, limit_s = self._endpoint.url, self._first_answer_s
            tokens = request.output_tokens
            raise EngineError(f"{url} did not finish a first request of {tokens} tokens within {limit_s:g} s") from None
        return flight

    def _judge(self, flight: Flight, *, came_at_once: bool) -> None:
        url = self._endpoint.url
        if flight.error.startswith(NOT_STREAMED):
            raise EngineError(f"{url}: {flight.error}; only a stream can be measured")
        if flight.error.startswith(_CALLERS_FAULT):
            raise UsageError(f"{url} refuses a first request: {flight.error}")
        if flight.end is not End.FINISHED:
            raise EngineError(f"{url} does not answer a first request: {flight.error}")
        if came_at_once:
            tokens = flight.output_tokens
            raise EngineError(f"{url}: {NOT_STREAMED}: all {tokens} tokens came at once; is a proxy buffering them?")

    async def _version(self) -> str | None:
        try:
            return await self._endpoint.version()
        except (EngineError, UsageError):
            return None


async def _has_counts(endpoint: Endpoint) -> bool:
    try:
        text = await endpoint.metrics()
    except EngineError:
        return False
    return text is not None and requests_in_server(text) is not None


def _came_at_once(flight: Flight) -> bool:
    """Whether an answer came faster than any engine generates: the time between tokens is our own reading of them."""
    if flight.first_token_s is None or flight.last_token_s is None or flight.output_tokens < 2:  # noqa: PLR2004 - a gap needs two
        return False
    return flight.last_token_s - flight.first_token_s < _FASTEST_TPOT_S * (flight.output_tokens - 1)


def requests_in_server(metrics: str) -> tuple[float, float] | None:
    """Requests running and waiting, from Prometheus text, summed over engines; None where vLLM's gauges are missing."""
    lines = [line for line in metrics.splitlines() if line.startswith(_GAUGES)]
    samples = [
        sample for family in text_string_to_metric_families("\n".join([*lines, ""])) for sample in family.samples
    ]
    sums = [[sample.value for sample in samples if sample.name == gauge] for gauge in _GAUGES]
    running, waiting = sums
    return (sum(running), sum(waiting)) if running and waiting else None


def is_loopback(url: str) -> bool:
    """Whether a base URL points to this machine; load on another one needs its owner's word."""
    host = (urlsplit(url if "//" in url else f"//{url}").hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or address.is_unspecified
