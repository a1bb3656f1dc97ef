"""What is written into a flight, whatever came of its request."""

from __future__ import annotations

import httpx2 as httpx
import pytest
from fake_server import DONE, event, finish, token
from flights import ask

from traffic.http_client import Bounds
from traffic.records import End, Flight
from traffic.reply import Reply

BOUNDS = Bounds(stall_s=5.0)
BROKEN = httpx.RemoteProtocolError("no")


def started(status: int, *bodies: bytes) -> tuple[Reply, Flight]:
    """A reply of which that much came, at 1.0 s."""
    flight = Flight(sent_s=0.0)
    reply = Reply(ask(), flight)
    feed = reply.open(status)
    for body in bodies:
        feed(body, 1.0)
    return reply, flight


def test_nothing_more_is_wanted_of_an_answer_after_its_last_event() -> None:
    reply, flight = started(200, event(token("a")), event(finish()))
    assert not reply.is_complete
    assert reply.open(200)(event(DONE), 2.0) is False
    assert (reply.is_complete, flight.end, flight.ended_s) == (True, End.FINISHED, 2.0)


def test_an_error_in_the_stream_is_an_end_and_no_complete_answer() -> None:
    reply, flight = started(200, event({"error": "engine died"}))
    assert (reply.is_complete, flight.error) == (False, "server error in the stream: engine died")


@pytest.mark.parametrize(
    ("status", "body", "error", "end", "text"),
    [
        (200, event(token("a")), BROKEN, End.TRUNCATED, "truncated: the connection closed in the middle of the answer"),
        (200, event(token("a")), httpx.ReadTimeout(""), End.TIMED_OUT, "stalled: nothing for 5 s"),
        (200, event(token("a")) + event(finish()), BROKEN, End.FINISHED, ""),
        (503, b'{"error": "full"}', BROKEN, End.FAILED, "HTTP 503: full"),
        (503, b"", httpx.ReadTimeout(""), End.FAILED, "HTTP 503: Service Unavailable"),
    ],
)
def test_what_had_come_decides_what_a_break_means(
    status: int, body: bytes, error: Exception, end: End, text: str
) -> None:
    reply, flight = started(status, body)
    reply.fail(3.0, error, BOUNDS)
    assert (flight.end, flight.error) == (end, text)


@pytest.mark.parametrize("status", [200, 503])
def test_a_response_that_takes_too_long_is_timed_out_whatever_its_status(status: int) -> None:
    reply, flight = started(status, b": ping\n\n")
    reply.expire(1800.0, 1800.0)
    assert (flight.end, flight.error, flight.ended_s) == (End.TIMED_OUT, "no end within 1800 s", 1800.0)


def test_a_refusal_is_kept_up_to_64_kib() -> None:
    reply, flight = started(500)
    feed = reply.open(500)
    assert feed(b"x" * 65_000, 1.0) is True
    assert feed(b"x" * 1_000, 1.0) is False
    reply.close(2.0)
    assert flight.end is End.FAILED
    assert flight.error.startswith("HTTP 500: xxx")
