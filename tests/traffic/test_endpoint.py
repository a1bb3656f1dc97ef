import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_server import (
    CLOSE,
    DONE,
    HOLD,
    Script,
    by_path,
    event,
    eventually,
    finish,
    head,
    in_turn,
    reply,
    streamed,
    timed,
    token,
    usage,
    whole_answer,
)
from flights import KEY, against, ask, fly, one
from memory_server import MemoryServer

from traffic.endpoint import Endpoint, ModelCard
from traffic.errors import EngineError, UsageError
from traffic.http_engine import HttpEngine
from traffic.records import End, Flight, Message

SAMPLES = Path(__file__).parents[1] / "vllm_samples"


class TestRequest:
    def test_it_asks_for_a_counted_stream_of_exactly_so_many_tokens(self) -> None:
        async def use(server: MemoryServer, endpoint: Endpoint) -> None:
            await fly(HttpEngine(endpoint, "m"))
            await fly(HttpEngine(endpoint, "m"), ask(force_length=False))
            await fly(HttpEngine(endpoint, "m", forces_length=False, continuous_usage=False))
            await fly(HttpEngine(endpoint, "m", extra_body={"top_p": 0.5, "temperature": None, "max_tokens": 9}))
            full, free, plain, own = (received.json for received in server.received)
            assert full == {
                "model": "m",
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi, 世界"}],
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
                "max_tokens": 4,
                "min_tokens": 4,
                "ignore_eos": True,
                "temperature": 0,
            }
            assert full.keys() - free.keys() == {"min_tokens", "ignore_eos"}
            assert plain == {**free, "stream_options": {"include_usage": True}}
            assert (own["top_p"], own["max_tokens"], "temperature" in own) == (0.5, 9, False)

        server = against(in_turn(whole_answer(4)), use)
        assert server.connections == 1, "a connection that was read to its end serves again"
        assert server.received[0].headers["accept-encoding"] == "identity"

    def test_key_and_headers_go_to_the_server_and_into_no_text(self) -> None:
        messages = [f"no entry for {KEY}", f"{'x' * 291}{KEY}", "Token t0ps3cret is bad"]
        echoes = [reply(401, {"error": {"message": message}}) for message in messages]

        async def use(server: MemoryServer, endpoint: Endpoint) -> None:
            engine = HttpEngine(endpoint, "m")
            texts = [(await fly(engine)).error for _ in messages]
            texts += [repr(endpoint), repr(engine), repr(vars(engine))]
            assert not [text for text in texts if KEY[:4] in text or "t0ps3cret" in text]
            assert server.received[0].headers["authorization"] == f"Bearer {KEY}"
            assert server.received[0].headers["x-token"] == "Token t0ps3cret"

        against(in_turn(*echoes), use, api_key=f"{KEY}\n", headers={"X-Token": "Token t0ps3cret"})

    def test_times_are_the_loops_and_start_before_the_connection(self) -> None:
        words = [(1.0, token("", role="assistant")), (2.0, token("a")), (3.5, token("b"))]
        script = timed(*words, (4.0, finish()), (4.5, usage(2)), (5.0, DONE))

        async def use(_: MemoryServer, endpoint: Endpoint) -> None:
            flight = await fly(HttpEngine(endpoint, "m"))
            assert (flight.sent_s, flight.first_token_s, flight.last_token_s) == (0.0, 2.25, 3.75)
            assert (flight.ended_s, flight.end) == (5.25, End.FINISHED)

        against(in_turn(script), use, server=MemoryServer(in_turn(script), connect_s=0.25))


class TestEnds:
    def test_a_refusal_has_the_servers_own_words(self) -> None:
        _, _, body = (SAMPLES / "error_400.txt").read_text().partition("\n")
        head_and_body = head("application/json", f"Content-Length: {len(body)}", status=400) + body.encode()
        flight = one([(0.0, head_and_body)])
        assert flight.end is End.FAILED
        assert flight.error.startswith("HTTP 400: max_tokens=50000 cannot be greater than max_model_len=2048.")

    @pytest.mark.parametrize(
        ("body", "text"), [(b"overloaded\n", "overloaded"), (b"<html>", "Service Unavailable"), (b"[1]", "[1]")]
    )
    def test_a_refusal_without_json_still_says_something(self, body: bytes, text: str) -> None:
        script = [(0.0, head("text/plain", f"Content-Length: {len(body)}", status=503) + body)]
        assert one(script).error == f"HTTP 503: {text}"

    def test_a_redirect_is_not_followed(self) -> None:
        script = [(0.0, head("text/plain", "Location: http://elsewhere/", "Content-Length: 0", status=307))]
        assert one(script).error == "HTTP 307: Temporary Redirect"

    def test_r13_a_stream_that_falls_silent_ends_by_its_stall_bound(self) -> None:
        flight = one(timed((1.0, token("a")), ends=False))
        assert (flight.end, flight.error) == (End.TIMED_OUT, "stalled: nothing for 120 s")
        assert (flight.first_token_s, flight.ended_s) == (1.0, 121.0)

    def test_r13_a_server_that_says_nothing_ends_by_its_stall_bound(self) -> None:
        flight = one([HOLD])
        assert (flight.error, flight.ended_s) == ("stalled: nothing for 120 s", 120.0)

    def test_r13_heartbeats_do_not_keep_a_request_beyond_its_total_bound(self) -> None:
        flight = one(streamed([(110.0, b": ping\n\n")] * 100))
        assert (flight.end, flight.error) == (End.TIMED_OUT, "no end within 1800 s")
        assert flight.ended_s == 1800.0

    def test_a_complete_answer_stays_complete_when_the_connection_lingers(self) -> None:
        flight = one(streamed([(1.0, event(token("a"))), (1.0, event(finish())), HOLD]))
        assert (flight.end, flight.error, flight.ended_s) == (End.FINISHED, "", 2.0)

    def test_a_connection_that_does_not_come_about_ends_by_its_bound(self) -> None:
        async def use(_: MemoryServer, endpoint: Endpoint) -> None:
            flight = await fly(HttpEngine(endpoint, "m"))
            assert (flight.end, flight.error) == (End.TIMED_OUT, "no connection within 10 s")
            assert (flight.sent_s, flight.ended_s) == (0.0, 10.0)

        handler = in_turn(whole_answer(4))
        against(handler, use, server=MemoryServer(handler, connect_s=60.0))

    def test_what_is_not_http_fails(self) -> None:
        flight = one([(0.0, b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), CLOSE])
        assert flight.end is End.FAILED
        assert "broke HTTP" in flight.error

    def test_cancelling_closes_the_stream_and_keeps_the_facts(self) -> None:
        async def use(server: MemoryServer, endpoint: Endpoint) -> None:
            flight = Flight()
            task = asyncio.create_task(HttpEngine(endpoint, "m").generate(ask(), flight))
            await eventually(lambda: flight.first_token_s is not None)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (flight.end, flight.error, flight.output_tokens) == (None, "", 1)
            await eventually(lambda: server.closed_by_client)

        against(in_turn(streamed([(0.0, event(token("a"))), HOLD])), use)


class TestCalls:
    def test_what_a_server_says_of_itself(self) -> None:
        pages: Mapping[str, Script] = {
            "/v1/models": [*_page("models.json")],
            "/tokenize": [*_page("tokenize_chat.json")],
            "/version": reply(200, {"version": "0.32.0"}),
            "/metrics": [*_page("metrics_idle.txt")],
            "/health": [(0.0, head("text/plain", "Content-Length: 0"))],
        }

        async def use(server: MemoryServer, endpoint: Endpoint) -> None:
            assert await endpoint.models() == [ModelCard("models/tiny", 2048)]
            assert await endpoint.count_tokens("models/tiny", [Message("user", "Hi")]) == 15
            assert await endpoint.version() == "0.32.0"
            assert "vllm:num_requests_running" in (await endpoint.metrics() or "")
            assert await endpoint.is_healthy()
            assert server.received[1].json["messages"] == [{"role": "user", "content": "Hi"}]

        against(by_path(pages), use)

    def test_a_server_may_have_none_of_these_pages(self) -> None:
        async def use(_: MemoryServer, endpoint: Endpoint) -> None:
            assert await endpoint.models() is None
            assert await endpoint.count_tokens("m", []) is None
            assert await endpoint.version() is None
            assert await endpoint.metrics() is None
            assert not await endpoint.is_healthy()

        against(by_path({}), use)

    @pytest.mark.parametrize(
        ("script", "kind", "text"),
        [
            (reply(401, {"error": f"bad {KEY}"}), UsageError, "refuses the API key"),
            (reply(500, {"error": f"bad {KEY}"}), EngineError, r"HTTP 500: bad \*\*\*"),
            (reply(200, {"data": 5}), EngineError, "no list of models"),
            ([(0.0, head("text/html", "Content-Length: 6") + b"<html>")], EngineError, "not JSON"),
            ([HOLD], EngineError, "no answer within 10 s"),
            ([CLOSE], EngineError, "closed the connection"),
        ],
    )
    def test_a_page_that_cannot_be_read_says_why(self, script: Script, kind: type[Exception], text: str) -> None:
        async def use(_: MemoryServer, endpoint: Endpoint) -> None:
            with pytest.raises(kind, match=text):
                await endpoint.models()
            assert not await endpoint.is_healthy() or script[0][1]

        against(in_turn(script), use, api_key=KEY)


def _page(name: str) -> Script:
    body = (SAMPLES / name).read_bytes()
    return [(0.0, head("application/json", f"Content-Length: {len(body)}") + body)]
