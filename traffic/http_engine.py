"""Requests that are measured, over HTTP: an engine that asks an endpoint for chat completions and reads the streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from traffic.endpoint import Endpoint, wire_messages
from traffic.http_client import FAULTS
from traffic.recipe import EngineRecipe
from traffic.records import Flight, Request
from traffic.reply import Reply
from traffic.wire import Limits


class HttpEngine:
    """An `Engine` that asks for chat completions and reads them as a stream.

    extra_body: fields merged into every request last; one that is None takes the field away. forces_length and
    continuous_usage: whether the server takes min_tokens and ignore_eos, and continuous_usage_stats.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        extra_body: Mapping[str, object] | None = None,
        forces_length: bool = True,
        continuous_usage: bool = True,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._extra_body = dict(extra_body or {})
        self._forces_length = forces_length
        self._continuous_usage = continuous_usage

    def __repr__(self) -> str:
        return f"HttpEngine({self._endpoint!r}, {self._model!r})"

    def recipe(self) -> EngineRecipe:
        """How another process makes the same engine."""
        return EngineRecipe(
            endpoint=self._endpoint.recipe(),
            model=self._model,
            extra_body=self._extra_body,
            forces_length=self._forces_length,
            continuous_usage=self._continuous_usage,
        )

    async def generate(self, request: Request, flight: Flight) -> None:
        """Send the request and write its facts into `flight`; the protocol's contract.

        sent_s is the moment at which the encoded request is handed to the transport, so waiting for a connection is
        in the TTFT. A request that goes out again (R11) keeps it.
        """
        body = self.body(request)
        clock = asyncio.get_running_loop().time
        bounds = self._endpoint.bounds
        reply = Reply(request, flight)
        flight.sent_s = clock()
        limits = Limits(bounds.stall_s, flight.sent_s + bounds.total_s)
        try:
            reply.close(await self._endpoint.exchange("/v1/chat/completions", body, reply, limits))
        except TimeoutError:
            reply.expire(clock(), bounds.total_s)
        except FAULTS as error:
            reply.fail(clock(), error, bounds)
        if flight.error:
            flight.error = self._endpoint.redact(flight.error)

    async def prompt_logprobs(self, text: str, *, more_tokens: int) -> object:
        """A text as vLLM finds it, token by token, and what it would go on with; None where it has no such page.

        Nothing is measured by it, so it is no `generate`. Raises EngineError for a server that refuses or breaks.
        """
        fields = {
            "model": self._model,
            "prompt": text,
            "max_tokens": more_tokens,
            "temperature": 0,
            "prompt_logprobs": 1,
            "logprobs": 1,
        }
        return await self._endpoint.complete(fields, limit_s=self._endpoint.bounds.stall_s)

    def body(self, request: Request) -> bytes:
        """The request as it goes over the wire."""
        options = {"include_usage": True}
        if self._continuous_usage:
            options["continuous_usage_stats"] = True
        fields: dict[str, object] = {
            "model": self._model,
            "messages": wire_messages(request.messages),
            "stream": True,
            "stream_options": options,
            "max_tokens": request.output_tokens,
            "temperature": 0,
        }
        if request.force_length and self._forces_length:
            fields |= {"min_tokens": request.output_tokens, "ignore_eos": True}
        fields |= self._extra_body
        return json.dumps({name: value for name, value in fields.items() if value is not None}).encode("ascii")
