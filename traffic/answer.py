"""One answer's events become the facts of its flight. Pure: no clock, no socket."""

from __future__ import annotations

import json
import re

from traffic.event_shape import event_shape
from traffic.records import End, Flight, Request
from traffic.sse import BOM, Chunk, SseParser, error_message, interpret, one_line

NOT_STREAMED = "the server does not stream"
"""How the error of an answer begins that came as one body instead of events."""

_HEAD_BYTES = 65_536
_FIELDS = (b":", b"data:", b"event:", b"id:", b"retry:")
_EVENT_END = b"\n\n"
_SHAPES = 2
"""Times that an answer's events are looked at for a shape: the first token may come in another one than the rest."""


class AnswerReader:
    """Reads one answer's body into its flight; every moment is an argument, in the event loop's seconds.

    Tokens: the server's final count, else its cumulative one, else the number of token-bearing chunks, marked as an
    estimate. A chunk without text whose cumulative count rose bears a token (half of a UTF-8 character, an end-of-text
    token). Where the only sign of tokens is the final count, the finishing chunk is taken as their moment: late, so
    the server is never flattered. The answer ends at its last event, not when the connection does.

    Plain token events are told by their shape, once one of them was parsed; everything else is parsed.
    """

    __slots__ = (
        "_body_head",
        "_finish_s",
        "_flight",
        "_has_payload",
        "_last_event_s",
        "_parser",
        "_plain",
        "_request",
        "_shape",
        "_shapes_left",
        "_token_chunks",
        "_usage_tokens",
    )

    def __init__(self, request: Request, flight: Flight) -> None:
        self._request = request
        self._flight = flight
        self._parser = SseParser()
        self._body_head = b""
        self._has_payload = False
        self._token_chunks = 0
        self._usage_tokens = 0
        self._finish_s: float | None = None
        self._last_event_s = 0.0
        self._shape: re.Pattern[bytes] | None = None
        self._shapes_left = 0 if flight.answer is not None else _SHAPES
        self._plain: re.Pattern[bytes] | None = None

    def feed(self, data: bytes, now_s: float) -> bool:
        """Bytes of the body arrived; whether the answer goes on."""
        if self._plain is not None and (plain := self._plain.fullmatch(data)) is not None:
            self._take_plain(plain, data.count(_EVENT_END), now_s)
            return True
        payloads = self._parser.feed(data)
        if not self._has_payload and len(self._body_head) < _HEAD_BYTES:
            self._body_head += data
        tokens = self._token_chunks
        for payload in payloads:
            self._take(payload, now_s)
        if self._shapes_left and len(payloads) == 1 and self._token_chunks > tokens:
            self._learn(payloads[0])
        is_going_on = self._flight.end is None
        self._plain = self._shape if is_going_on and self._parser.is_between_events else None
        return is_going_on

    def _learn(self, payload: bytes) -> None:
        """What was not of the shape that was learnt before may be what follows."""
        self._shapes_left -= 1
        self._shape = event_shape(payload) or self._shape

    def _take_plain(self, plain: re.Match[bytes], count: int, now_s: float) -> None:
        """As many token events, as `_count` takes each of them."""
        flight = self._flight
        self._last_event_s = now_s
        self._token_chunks += count
        if plain.re.groups:
            self._usage_tokens = int(plain[1])
        flight.token(now_s, 0)
        if count > 1:
            flight.token(now_s, 0)
        flight.output_tokens = self._usage_tokens or self._token_chunks
        flight.output_tokens_estimated = not self._usage_tokens

    def close(self, now_s: float) -> None:
        """The body ended as HTTP wants it."""
        for payload in self._parser.close():
            self._take(payload, now_s)
        if not self._has_payload:
            self._flight.finish(now_s, *self._eventless())
        self._end(now_s)

    def break_off(self, now_s: float, end: End, error: str) -> None:
        """The body will not come to its end: `end` and `error` stand, unless the answer itself was complete."""
        if self._flight.finish_reason is None:
            self._settle()
            self._flight.finish(now_s, end, error)
        else:
            self._end(now_s)

    def _take(self, payload: bytes, now_s: float) -> None:
        flight = self._flight
        if flight.end is not None:
            return
        self._has_payload = True
        chunk = interpret(payload)
        if chunk.is_malformed:
            flight.malformed_frames += 1
            return
        self._last_event_s = now_s
        if chunk.is_done:
            self._end(now_s)
            return
        if chunk.error is not None:
            self._settle()
            flight.finish(now_s, End.FAILED, f"server error in the stream: {chunk.error}")
            return
        self._count(chunk, now_s)

    def _count(self, chunk: Chunk, now_s: float) -> None:
        flight = self._flight
        if chunk.prompt_tokens is not None:
            flight.prompt_tokens = chunk.prompt_tokens
        if chunk.cached_tokens is not None:
            flight.cached_tokens = chunk.cached_tokens
        usage_tokens = chunk.completion_tokens or 0
        rose = chunk.has_choices and usage_tokens > self._usage_tokens
        if chunk.finish_reason is not None and self._usage_tokens == 0:
            rose = False  # the one count of a server that counts at the end only: no sign of a token in this chunk
        if usage_tokens:
            self._usage_tokens = usage_tokens
        if flight.answer is not None and chunk.text:
            flight.answer.append(chunk.text)
        if chunk.has_tokens or rose:
            self._token_chunks += 1
            flight.token(now_s, 0)
            flight.output_tokens = self._usage_tokens or self._token_chunks
            flight.output_tokens_estimated = not self._usage_tokens
        if chunk.finish_reason is not None:
            flight.finish_reason = chunk.finish_reason
            self._finish_s = now_s

    def _settle(self) -> None:
        """The token count that holds, whatever the end."""
        flight = self._flight
        flight.output_tokens = self._usage_tokens or self._token_chunks
        flight.output_tokens_estimated = not self._usage_tokens and self._token_chunks > 0
        if flight.first_token_s is None and flight.output_tokens and self._finish_s is not None:
            flight.first_token_s = flight.last_token_s = self._finish_s

    def _end(self, now_s: float) -> None:
        if self._flight.end is not None:
            return
        self._settle()
        if self._flight.finish_reason is None:
            self._flight.finish(now_s, End.TRUNCATED, "truncated: the stream ended without a finish reason")
            return
        end, error = self._verdict(self._flight.finish_reason)
        self._flight.finish(self._last_event_s, end, error)

    def _verdict(self, finish_reason: str) -> tuple[End, str]:
        tokens, asked = self._flight.output_tokens, self._request.output_tokens
        if finish_reason == "abort":
            return End.TRUNCATED, "truncated: the server aborted the request"
        if finish_reason == "error":
            return End.FAILED, "server error: finish reason error"
        if tokens == 0:
            return End.FAILED, f"no token in the answer (finish reason {one_line(finish_reason)})"
        if finish_reason == "length" and self._request.force_length and 0 < self._usage_tokens < asked:
            return End.TRUNCATED, f"truncated: the server cut the answer at {tokens} of {asked} tokens"
        return End.FINISHED, ""

    def _eventless(self) -> tuple[End, str]:
        """What to say of a 200 without a single payload."""
        head = self._body_head.removeprefix(BOM).lstrip()
        if not head or head.startswith(_FIELDS):
            return End.TRUNCATED, "truncated: the body ended without an answer"
        try:
            message = error_message(json.loads(head))
        except (ValueError, RecursionError):
            message = None
        if message is not None:
            return End.FAILED, f"server error: {message}"
        return End.FAILED, f"{NOT_STREAMED}: it answered in one body without events"
