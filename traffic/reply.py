"""What becomes of one request's response: an answer, a refusal, or a fault, written into its flight."""

from __future__ import annotations

import httpx2 as httpx

from traffic.answer import AnswerReader
from traffic.http_client import Bounds, describe, refusal
from traffic.records import End, Flight, Request
from traffic.wire import Feed

_REFUSAL_BYTES = 65_536
_OK = 200


class Reply:
    """A `Sink`: status 200 brings an answer, any other a refusal with the first 64 KiB of its body."""

    def __init__(self, request: Request, flight: Flight) -> None:
        self._flight = flight
        self._reader = AnswerReader(request, flight)
        self._status: int | None = None
        self._refusal = bytearray()

    def open(self, status: int) -> Feed:
        """The head came."""
        self._status = status
        return self._reader.feed if status == _OK else self._refuse

    @property
    def is_complete(self) -> bool:
        """Whether the answer came to its end."""
        return self._flight.end is End.FINISHED

    def close(self, now_s: float) -> None:
        """The response is over, as HTTP wants it or because nothing more was wanted."""
        if self._status == _OK:
            self._reader.close(now_s)
        else:
            self._finish_refusal(now_s)

    def expire(self, now_s: float, total_s: float) -> None:
        """It took too long."""
        self._reader.break_off(now_s, End.TIMED_OUT, f"no end within {total_s:g} s")

    def fail(self, now_s: float, error: Exception, bounds: Bounds) -> None:
        """The connection did not come about, or broke."""
        if self._status == _OK and isinstance(error, httpx.RemoteProtocolError):
            text = "truncated: the connection closed in the middle of the answer"
            self._reader.break_off(now_s, End.TRUNCATED, text)
        elif self._status not in (None, _OK):
            self._finish_refusal(now_s)
        else:
            self._reader.break_off(now_s, *describe(error, bounds))

    def _refuse(self, data: bytes, _: float) -> bool:
        self._refusal += data
        return len(self._refusal) < _REFUSAL_BYTES

    def _finish_refusal(self, now_s: float) -> None:
        assert self._status is not None  # noqa: S101 - the head came before
        body = self._refusal[:_REFUSAL_BYTES].decode("utf-8", errors="replace")
        self._flight.finish(now_s, End.FAILED, refusal(self._status, body))
