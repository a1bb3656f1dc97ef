"""One connection of the measured path: whatever comes over it, the request ends once, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx2 as httpx
import pytest
import uvloop
from fake_server import CLOSE, DONE, HOLD, Cut, Script, chunk, event, finish, head, in_turn, token, usage, whole_answer
from flights import against, ask, fly, one
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_server import MemoryServer, MemoryTransport, joined

from traffic.endpoint import Endpoint
from traffic.http_client import Bounds
from traffic.http_engine import HttpEngine
from traffic.records import End, Flight
from traffic.virtual_time import run_virtual
from traffic.wire import Feed, HttpWire, Limits

EVENTS = [
    event(each) for each in (token("a", usage=1), token("世", usage=2), finish("length", usage=2), usage(2), DONE)
]
BODY = b"".join(EVENTS)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = head("text/event-stream", "Transfer-Encoding: chunked") + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"
RESPONSES = {
    "chunked": CHUNKED,
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + CHUNKED,
    "length": head("text/event-stream", f"Content-Length: {len(BODY)}") + BODY,
    "until close": head("text/event-stream") + BODY,
    "refusal": head("application/json", "Content-Length: 14", status=503) + json.dumps({"error": "no"}).encode(),
}
SHORT = Bounds(stall_s=5.0, total_s=60.0)


def facts(flight: Flight) -> tuple[object, ...]:
    """What a flight says, times aside."""
    counts = (flight.output_tokens, flight.output_tokens_estimated, flight.prompt_tokens, flight.malformed_frames)
    return (flight.end, flight.error, *counts)


def flights_of(*scripts: Script) -> list[Flight]:
    """One request for each script, one after the other."""
    flights: list[Flight] = []

    async def use(_: MemoryServer, endpoint: Endpoint) -> None:
        engine = HttpEngine(endpoint, "m")
        for _script in scripts:
            async with asyncio.timeout(61.0):
                flights.append(await fly(engine, ask(2)))

    against(in_turn(*scripts), use, SHORT)
    return flights


class Taken:
    """A sink that keeps what it reads, and wants no more after so many bytes."""

    def __init__(self, *, wants: int = 1_000_000, complete: bool = False) -> None:
        self.status: int | None = None
        self.body = b""
        self.is_complete = complete
        self._wants = wants

    def open(self, status: int) -> Feed:
        self.status = status
        return self.feed

    def feed(self, data: bytes, _: float) -> bool:
        self.body += data
        return len(self.body) < self._wants


def on_a_wire(use: Callable[[HttpWire, MemoryTransport], Awaitable[None]]) -> None:
    """Run `use` with a wire and the other end of its connection."""

    async def run() -> None:
        wire = HttpWire()
        near = joined(wire, asyncio.Protocol())
        await use(wire, near.other)

    run_virtual(run())


def asked(wire: HttpWire, sink: Taken, *, stall_s: float = 5.0, total_s: float = 60.0) -> asyncio.Task[float]:
    end_by_s = asyncio.get_running_loop().time() + total_s
    return asyncio.create_task(wire.exchange(b"GET / HTTP/1.1\r\n\r\n", sink, Limits(stall_s, end_by_s)))


class TestCuts:
    @settings(max_examples=40, deadline=None)
    @given(name=st.sampled_from(sorted(RESPONSES)), data=st.data())
    def test_any_cut_of_a_responses_bytes_gives_the_same_record(self, name: str, data: st.DataObject) -> None:
        response = RESPONSES[name]
        places = sorted(data.draw(st.sets(st.integers(1, len(response) - 1), max_size=12)))
        edges = zip([0, *places], [*places, len(response)], strict=True)
        pieces = [(1e-6, response[start:end]) for start, end in edges]
        end = [CLOSE] if name == "until close" else []
        cut, whole = flights_of([*pieces, *end], [(0.0, response), *end])
        assert facts(cut) == facts(whole)
        assert (whole.end, whole.output_tokens) == ((End.FAILED, 0) if name == "refusal" else (End.FINISHED, 2))

    def test_one_byte_at_a_time_gives_the_same_record(self) -> None:
        for response in (RESPONSES["interim"], RESPONSES["length"]):
            bytewise = [(1e-6, bytes([each])) for each in response]
            first, second = flights_of(bytewise, [(0.0, response)])
            assert facts(first) == facts(second)

    @pytest.mark.parametrize("end", [CLOSE, (1e-6, Cut.RESET), HOLD])
    @pytest.mark.parametrize("name", sorted(RESPONSES))
    def test_a_response_broken_at_any_byte_ends_once_and_says_why(self, name: str, end: Any) -> None:
        response = RESPONSES[name]
        positions = range(0, len(response), 1 if name in ("chunked", "refusal") else 7)
        for position, flight in zip(
            positions, flights_of(*([(0.0, response[:position]), end] for position in positions)), strict=True
        ):
            is_answered = b"[DONE]\n\n" in response[:position] or b'"finish_reason": "length"' in response[:position]
            assert flight.end is not None
            assert flight.ended_s is not None
            assert (flight.end is End.FINISHED) <= is_answered, position
            assert bool(flight.error) == (flight.end is not End.FINISHED), position


class TestHeads:
    @pytest.mark.parametrize(
        ("response", "text"),
        [
            (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "broke HTTP"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "broke HTTP"),
            (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 110_000, "the head of the response does not end"),
            (b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000, "the head of the response does not end"),
            (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello", "HTTP 101: "),
        ],
    )
    def test_what_is_no_response_fails(self, response: bytes, text: str) -> None:
        (flight,) = flights_of([(0.0, response), HOLD])
        assert flight.end is End.FAILED
        assert text in flight.error

    @pytest.mark.parametrize(
        "response",
        [
            b"HTTP/1.1 200 OK\n%s\n%s" % (LENGTH.replace(b"\r", b""), BODY),
            b"HTTP/1.1 200\r\n%s\r\n%s" % (LENGTH, BODY),
            b"HTTP/1.1 200 OK\r\nX: a\r\n  b\x01\xff\r\n%s\r\n%s" % (LENGTH, BODY),
            b"HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n%s\r\n%s" % (LENGTH, BODY),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (LENGTH, len(BODY), BODY),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%X  \r\n%s\r\n0;x=y\r\n\r\n" % (len(BODY), BODY),
        ],
    )
    def test_what_is_not_quite_http_is_read_all_the_same(self, response: bytes) -> None:
        async def use(server: MemoryServer, endpoint: Endpoint) -> None:
            for _ in range(2):
                flight = await fly(HttpEngine(endpoint, "m"), ask(2))
                assert (flight.end, flight.error, flight.output_tokens) == (End.FINISHED, "", 2)
            assert server.connections == 1

        against(in_turn([(0.0, response)]), use)

    def test_a_refusal_is_read_up_to_64_kib_and_its_connection_closed(self) -> None:
        async def use(server: MemoryServer, endpoint: Endpoint) -> None:
            flight = await fly(HttpEngine(endpoint, "m"))
            assert (flight.end, flight.ended_s) == (End.FAILED, 0.0)
            assert flight.error.startswith("HTTP 500: xxx")
            await asyncio.sleep(2.0)
            assert server.closed_by_client == 1

        endless = [(0.0, head("text/plain", status=500) + b"x" * 70_000), (1.0, b"x"), HOLD]
        against(in_turn(endless), use)

    def test_a_refusal_whose_body_stalls_is_still_a_refusal(self) -> None:
        (flight,) = flights_of([(0.0, head("text/plain", "Content-Length: 9", status=500) + b"full"), HOLD])
        assert (flight.error, flight.ended_s) == ("HTTP 500: full", 5.0)


class TestReuse:
    @pytest.mark.parametrize(
        ("response", "is_free"),
        [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", True),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc", False),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 200 OK\r\n", False),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab", False),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", False),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n\r\n", True),
        ],
    )
    def test_a_connection_serves_again_only_after_a_whole_response_and_nothing_more(
        self, response: bytes, is_free: bool
    ) -> None:
        async def use(wire: HttpWire, far: MemoryTransport) -> None:
            sink = Taken()
            task = asked(wire, sink)
            far.write(response)
            assert await task == 0.0
            assert (sink.status, sink.body, wire.is_free) == (200, b"ab", is_free)
            await asyncio.sleep(1.0)
            assert far.is_closing() is not is_free

        on_a_wire(use)

    def test_a_response_before_the_request_is_sent_counts_and_ends_the_connection(self) -> None:
        async def use(wire: HttpWire, far: MemoryTransport) -> None:
            wire.pause_writing()
            sink = Taken()
            task = asked(wire, sink)
            far.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            await task
            assert (sink.status, wire.is_free) == (413, False)

        on_a_wire(use)

    @pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
    def test_a_large_request_that_is_refused_halfway_is_a_refusal(
        self, loop: Callable[[], asyncio.AbstractEventLoop]
    ) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
            gone.set()

        async def run() -> None:
            async with await asyncio.start_server(refuse, "127.0.0.1", limit=1024) as server:
                make = asyncio.get_running_loop().create_connection
                _, wire = await make(HttpWire, *server.sockets[0].getsockname())
                sink = Taken()
                request = b"POST / HTTP/1.1\r\n\r\n" + b"x" * 8_000_000
                async with asyncio.timeout(5.0):
                    await wire.exchange(request, sink, Limits(5.0, asyncio.get_running_loop().time() + 5.0))
                    assert (sink.status, wire.is_free) == (413, False)
                    await gone.wait()

        gone = asyncio.Event()
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(run())

    def test_bytes_that_nobody_asked_for_end_an_idle_connection(self) -> None:
        async def use(wire: HttpWire, far: MemoryTransport) -> None:
            far.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            await asyncio.sleep(0.1)
            assert not wire.is_free

        on_a_wire(use)

    @pytest.mark.parametrize(("complete", "over_s"), [(True, 1.0), (False, 0.0)])
    def test_what_follows_a_complete_answer_is_waited_for_and_not_for_long(self, complete: bool, over_s: float) -> None:
        async def use(wire: HttpWire, far: MemoryTransport) -> None:
            sink = Taken(wants=2, complete=complete)
            task = asked(wire, sink)
            far.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")
            await task
            assert asyncio.get_running_loop().time() == over_s
            assert not wire.is_free

        on_a_wire(use)

    def test_an_answer_whose_last_chunk_comes_a_moment_later_leaves_its_connection_free(self) -> None:
        script = [*whole_answer(2)[:-1], (0.5, b"0\r\n\r\n")]

        async def use(server: MemoryServer, endpoint: Endpoint) -> None:
            for _ in range(3):
                flight = await fly(HttpEngine(endpoint, "m"), ask(2))
                assert flight.end is End.FINISHED
            assert server.connections == 1

        against(in_turn(script), use)

    @pytest.mark.parametrize(
        ("end", "kind"), [(MemoryTransport.close, httpx.RemoteProtocolError), (MemoryTransport.abort, httpx.ReadError)]
    )
    def test_a_connection_that_is_over_before_it_was_used_says_so_at_once(
        self, end: Callable[[MemoryTransport], None], kind: type[Exception]
    ) -> None:
        async def use(wire: HttpWire, far: MemoryTransport) -> None:
            end(far)
            await asyncio.sleep(0.1)
            assert not wire.is_free
            with pytest.raises(kind):
                await asked(wire, Taken())
            assert asyncio.get_running_loop().time() == 0.1

        on_a_wire(use)


class TestLimits:
    def test_each_byte_starts_the_stall_bound_anew_and_the_total_holds(self) -> None:
        async def use(wire: HttpWire, far: MemoryTransport) -> None:
            loop = asyncio.get_running_loop()
            task = asked(wire, Taken(), stall_s=5.0, total_s=12.0)
            far.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
            for moment_s in (4.0, 8.0, 11.0):
                loop.call_at(moment_s, far.write, b"x")
            with pytest.raises(TimeoutError):
                await task
            assert loop.time() == 12.0

        on_a_wire(use)

    def test_silence_ends_it_to_the_moment(self) -> None:
        async def use(wire: HttpWire, far: MemoryTransport) -> None:
            loop = asyncio.get_running_loop()
            task = asked(wire, Taken())
            loop.call_at(3.5, far.write, b"HTTP/1.1 200 OK\r\n")
            with pytest.raises(httpx.ReadTimeout):
                await task
            assert loop.time() == 8.5

        on_a_wire(use)


def test_a_fault_of_the_reader_is_raised_as_it_is_and_not_taken_for_the_servers() -> None:
    class Faulty(Taken):
        def feed(self, _data: bytes, _now_s: float) -> bool:
            raise ZeroDivisionError

    async def use(wire: HttpWire, far: MemoryTransport) -> None:
        task = asked(wire, Faulty())
        far.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")
        with pytest.raises(ZeroDivisionError):
            await task
        assert not wire.is_free

    on_a_wire(use)


def test_an_error_that_a_cancellation_overtakes_is_no_complaint_of_the_loops() -> None:
    complaints: list[dict[str, Any]] = []

    async def use(wire: HttpWire, _: MemoryTransport) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        task = asked(wire, Taken())
        await asyncio.sleep(0)
        wire.eof_received()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not wire.is_free

    on_a_wire(use)
    assert complaints == []


def test_a_request_that_is_cancelled_at_any_byte_closes_its_connection_and_leaves_no_timer() -> None:
    async def use(server: MemoryServer, endpoint: Endpoint) -> None:
        loop: Any = asyncio.get_running_loop()
        for turns in range(40):
            task = asyncio.create_task(fly(HttpEngine(endpoint, "m"), ask(2)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await asyncio.sleep(10.0)
            assert not [timer for timer in loop._scheduled if not timer.cancelled()]
            assert server.busy == 0

    bytewise = [(0.0, bytes([each])) for each in RESPONSES["length"][:-1]]
    against(in_turn([*bytewise, HOLD]), use)


def test_a_stream_of_one_answer_is_stamped_as_it_comes() -> None:
    flight = one([(0.0, head("text/event-stream")), *((1.0, each) for each in EVENTS), CLOSE], request=ask(2))
    assert (flight.first_token_s, flight.last_token_s, flight.ended_s) == (1.0, 2.0, 5.0)
