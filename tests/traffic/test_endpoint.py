import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2 as httpx
import pytest
from fake_server import (
    CLOSE,
    DONE,
    HOLD,
    FakeServer,
    Handler,
    Received,
    Script,
    answer,
    by_path,
    chunk,
    event,
    eventually,
    finish,
    head,
    in_turn,
    reply,
    streamed,
    token,
    usage,
    whole_answer,
)

from traffic.endpoint import Endpoint, HttpEngine, ModelCard
from traffic.errors import EngineError, UsageError
from traffic.http_client import KEEP_ALIVE_S, Bounds, base_url, build_client
from traffic.records import End, Flight, Message, Request

SAMPLES = Path(__file__).parents[1] / "vllm_samples"
QUICK = Bounds(connect_s=1.0, stall_s=0.1, total_s=2.0, call_s=0.1)
PATIENT = Bounds(connect_s=5.0, stall_s=5.0, total_s=5.0, call_s=5.0)
KEY = "sk-very-secret-key"


def ask(tokens: int = 4, *, force_length: bool = True) -> Request:
    text = (Message("system", "Be brief."), Message("user", "Hi, 世界"))
    return Request(0, 0.0, "chat", 10, tokens, force_length=force_length, messages=text)


async def fly(engine: HttpEngine, request: Request | None = None) -> Flight:
    flight = Flight()
    await engine.generate(request or ask(), flight)
    return flight


def against(
    handler: Handler, use: Callable[[FakeServer, Endpoint], Awaitable[None]], bounds: Bounds = PATIENT, **more: object
) -> FakeServer:
    """Run `use` against a server with this handler."""

    async def run() -> FakeServer:
        async with FakeServer(handler) as server:
            async with Endpoint(f"{server.url}/v1", bounds=bounds, **more) as endpoint:  # type: ignore[arg-type]
                await use(server, endpoint)
            return server

    return asyncio.run(run())


def one(script: Script, *, bounds: Bounds = PATIENT, request: Request | None = None, **more: object) -> Flight:
    """The flight of one request that gets this script."""
    flights: list[Flight] = []

    async def use(_: FakeServer, endpoint: Endpoint) -> None:
        flights.append(await fly(HttpEngine(endpoint, "m"), request))

    against(in_turn(script), use, bounds, **more)
    return flights[0]


class TestRequest:
    def test_it_asks_for_a_counted_stream_of_exactly_so_many_tokens(self) -> None:
        async def use(server: FakeServer, endpoint: Endpoint) -> None:
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

        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            engine = HttpEngine(endpoint, "m")
            texts = [(await fly(engine)).error for _ in messages]
            texts += [repr(endpoint), repr(engine), repr(vars(engine))]
            assert not [text for text in texts if KEY[:4] in text or "t0ps3cret" in text]
            assert server.received[0].headers["authorization"] == f"Bearer {KEY}"
            assert server.received[0].headers["x-token"] == "Token t0ps3cret"

        against(in_turn(*echoes), use, api_key=f"{KEY}\n", headers={"X-Token": "Token t0ps3cret"})

    def test_times_are_the_loops_and_start_before_the_connection(self) -> None:
        async def use(_: FakeServer, endpoint: Endpoint) -> None:
            loop = asyncio.get_running_loop()
            before_s = loop.time()
            flight = await fly(HttpEngine(endpoint, "m"))
            assert flight.sent_s is not None
            assert flight.first_token_s is not None
            assert flight.last_token_s is not None
            assert flight.ended_s is not None
            assert before_s <= flight.sent_s
            assert flight.first_token_s - flight.sent_s >= 0.06
            assert flight.last_token_s - flight.first_token_s >= 0.03
            assert flight.last_token_s <= flight.ended_s <= loop.time()
            assert flight.end is End.FINISHED

        role = token("", role="assistant")
        words = [(0.03, event(role)), (0.03, event(token("a"))), (0.03, event(token("b")))]
        against(in_turn(streamed([*words, (0.0, event(finish())), (0.0, event(usage(2))), (0.0, event(DONE))])), use)


class TestEnds:
    def test_r04_an_error_after_the_200_fails_the_request(self) -> None:
        flight = one(answer(token("a"), {"error": {"message": "engine failed", "code": 500}}, DONE))
        assert (flight.end, flight.output_tokens) == (End.FAILED, 1)
        assert flight.error == "server error in the stream: engine failed"

    def test_r04_an_error_as_the_body_of_a_200_fails_the_request(self) -> None:
        assert one(reply(200, {"error": "engine failed"})).error == "server error: engine failed"

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

    def test_r11_a_429_fails_and_is_never_tried_again_in_secret(self) -> None:
        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            flight = await fly(HttpEngine(endpoint, "m"))
            assert (flight.end, flight.error) == (End.FAILED, "HTTP 429: slow down")
            assert len(server.received) == 1

        against(in_turn(reply(429, {"error": "slow down"}), whole_answer(4)), use)

    def test_a_redirect_is_not_followed(self) -> None:
        script = [(0.0, head("text/plain", "Location: http://elsewhere/", "Content-Length: 0", status=307))]
        assert one(script).error == "HTTP 307: Temporary Redirect"

    @pytest.mark.parametrize("how", ["chunked", "until close"])
    def test_r05_a_connection_that_closes_in_the_middle_truncates(self, how: str) -> None:
        body = event(token("a")) + event(token("b"))
        chunked = how == "chunked"
        start = head("text/event-stream", *(["Transfer-Encoding: chunked"] if chunked else ["Connection: close"]))
        flight = one([(0.0, start), (0.0, chunk(body) if chunked else body), CLOSE])
        assert (flight.end, flight.output_tokens) == (End.TRUNCATED, 2)
        assert flight.error.startswith("truncated")

    def test_r13_a_stream_that_falls_silent_ends_by_its_stall_bound(self) -> None:
        flight = one(streamed([(0.0, event(token("a"))), HOLD]), bounds=QUICK)
        assert (flight.end, flight.error) == (End.TIMED_OUT, "stalled: nothing for 0.1 s")
        assert flight.first_token_s is not None

    def test_r13_a_server_that_says_nothing_ends_by_its_stall_bound(self) -> None:
        assert one([HOLD], bounds=QUICK).error == "stalled: nothing for 0.1 s"

    def test_r13_heartbeats_do_not_keep_a_request_beyond_its_total_bound(self) -> None:
        beats = [(0.02, b": ping\n\n")] * 100
        flight = one(streamed(beats), bounds=Bounds(stall_s=1.0, total_s=0.15))
        assert (flight.end, flight.error) == (End.TIMED_OUT, "no end within 0.15 s")

    def test_a_complete_answer_stays_complete_when_the_connection_lingers(self) -> None:
        script = streamed([(0.0, event(token("a"))), (0.0, event(finish())), HOLD])
        flight = one(script, bounds=QUICK)
        assert (flight.end, flight.error) == (End.FINISHED, "")
        assert flight.ended_s is not None
        assert flight.sent_s is not None
        assert flight.ended_s - flight.sent_s < QUICK.stall_s

    def test_a_dead_port_refuses(self) -> None:
        async def run() -> Flight:
            async with Endpoint("http://127.0.0.1:1", bounds=QUICK) as endpoint:
                return await fly(HttpEngine(endpoint, "m"))

        flight = asyncio.run(run())
        assert (flight.end, flight.error) == (End.FAILED, "cannot connect: connection refused")
        assert flight.sent_s is not None
        assert flight.ended_s is not None

    def test_what_is_not_http_fails(self) -> None:
        flight = one([(0.0, b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), CLOSE])
        assert flight.end is End.FAILED
        assert "broke HTTP" in flight.error

    def test_cancelling_closes_the_stream_and_keeps_the_facts(self) -> None:
        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            flight = Flight()
            task = asyncio.create_task(HttpEngine(endpoint, "m").generate(ask(), flight))
            await eventually(lambda: flight.first_token_s is not None)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (flight.end, flight.error, flight.output_tokens) == (None, "", 1)
            await eventually(lambda: server.closed_by_client)

        against(in_turn(streamed([(0.0, event(token("a"))), HOLD])), use)


class TestConnections:
    def test_r10_every_request_has_a_connection_at_once(self) -> None:
        async def run() -> None:
            handler = in_turn(whole_answer(1))
            async with FakeServer(handler, together=150) as server, Endpoint(server.url) as endpoint:
                engine = HttpEngine(endpoint, "m")
                everyone = asyncio.gather(*(fly(engine, ask(1)) for _ in range(150)))
                flights = await asyncio.wait_for(everyone, 20)
                assert {flight.end for flight in flights} == {End.FINISHED}
                assert server.connections == 150

        asyncio.run(run())

    def test_r11_a_request_on_a_connection_that_was_given_up_goes_out_once_more(self) -> None:
        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            engine = HttpEngine(endpoint, "m")
            assert (await fly(engine)).end is End.FINISHED
            flight = await fly(engine)
            assert (flight.end, flight.error, endpoint.resent) == (End.FINISHED, "", 1)
            assert [received.connection for received in server.received] == [1, 1, 2]

        against(in_turn(whole_answer(4), [CLOSE], whole_answer(4)), use)

    def test_r11_a_fresh_connection_that_closes_is_a_failure(self) -> None:
        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            flight = await fly(HttpEngine(endpoint, "m"))
            assert flight.end is End.FAILED
            assert "closed the connection" in flight.error
            assert (len(server.received), endpoint.resent) == (1, 0)

        against(in_turn([CLOSE], whole_answer(4)), use)

    def test_r11_idle_connections_are_kept_for_less_time_than_servers_keep_them(self) -> None:
        assert KEEP_ALIVE_S < 5

    @pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
    def test_r10_localhost_is_whichever_loopback_address_the_server_has(self, host: str) -> None:
        async def run() -> None:
            async with FakeServer(in_turn(whole_answer(4)), host=host) as server:
                async with Endpoint(f"http://localhost:{server.port}") as endpoint:
                    assert (await fly(HttpEngine(endpoint, "m"))).end is End.FINISHED
                    assert endpoint.url == f"http://localhost:{server.port}"
                assert server.received[0].headers["host"] == f"localhost:{server.port}"

        asyncio.run(run())

    def test_a_proxy_variable_stays_out_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        assert one(whole_answer(4)).end is End.FINISHED


@contextmanager
def no_more_files() -> Iterator[None]:
    """A process that may open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TestClientFaults:
    def test_r10_too_many_open_files_are_the_clients_fault(self) -> None:
        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            await fly(HttpEngine(endpoint, "m"))
            await asyncio.sleep(0)
            holders = [socket.socket() for _ in range(3)]
            for holder in holders:
                holder.close()
            async with Endpoint(server.url) as other:
                with no_more_files():
                    flight = await fly(HttpEngine(other, "m"))
            assert flight.end is End.FAILED
            assert flight.error.startswith("client: too many open files (limit ")

        against(in_turn(whole_answer(4)), use)

    def test_r10_no_local_port_is_the_clients_fault(self) -> None:
        nowhere = httpx.AsyncHTTPTransport(local_address="192.0.2.1")
        flight = one(whole_answer(4), client=partial(build_client, transport=nowhere))
        assert flight.error.startswith("client: cannot assign requested address")

    def test_an_address_that_refused_beside_one_that_this_machine_lacks_is_the_servers_fault(self) -> None:
        group = ExceptionGroup("tried", [OSError(99, "no such address"), OSError(111, "refused")])

        def refuse(_: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("all failed") from group

        flight = one(whole_answer(4), client=partial(build_client, transport=httpx.MockTransport(refuse)))
        assert flight.error == "cannot connect: connection refused"


class TestCalls:
    def test_what_a_server_says_of_itself(self) -> None:
        pages: Mapping[str, Script] = {
            "/v1/models": [*_page("models.json")],
            "/tokenize": [*_page("tokenize_chat.json")],
            "/version": reply(200, {"version": "0.32.0"}),
            "/metrics": [*_page("metrics_idle.txt")],
            "/health": [(0.0, head("text/plain", "Content-Length: 0"))],
        }

        async def use(server: FakeServer, endpoint: Endpoint) -> None:
            assert await endpoint.models() == [ModelCard("models/tiny", 2048)]
            assert await endpoint.count_tokens("models/tiny", [Message("user", "Hi")]) == 15
            assert await endpoint.version() == "0.32.0"
            assert "vllm:num_requests_running" in (await endpoint.metrics() or "")
            assert await endpoint.is_healthy()
            assert server.received[1].json["messages"] == [{"role": "user", "content": "Hi"}]

        against(by_path(pages), use)

    def test_a_server_may_have_none_of_these_pages(self) -> None:
        async def use(_: FakeServer, endpoint: Endpoint) -> None:
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
            ([HOLD], EngineError, r"no answer within 0\.1 s"),
            ([CLOSE], EngineError, "closed the connection"),
        ],
    )
    def test_a_page_that_cannot_be_read_says_why(self, script: Script, kind: type[Exception], text: str) -> None:
        async def use(_: FakeServer, endpoint: Endpoint) -> None:
            with pytest.raises(kind, match=text):
                await endpoint.models()
            assert not await endpoint.is_healthy() or script[0][1]

        against(in_turn(script), use, QUICK, api_key=KEY)


def _page(name: str) -> Script:
    body = (SAMPLES / name).read_bytes()
    return [(0.0, head("application/json", f"Content-Length: {len(body)}") + body)]


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "root"),
        [
            ("http://host:8000/v1", "http://host:8000/"),
            ("http://host:8000/v1/", "http://host:8000/"),
            ("https://host/openai/v1", "https://host/openai"),
            (" http://[::1]:8000 ", "http://[::1]:8000/"),
        ],
    )
    def test_a_base_url_comes_with_or_without_v1(self, text: str, root: str) -> None:
        assert str(base_url(text)) == root

    @pytest.mark.parametrize("text", ["", "host:8000", "ftp://host", "http://", "http://host:port", "/v1"])
    def test_what_is_no_base_url_is_a_usage_error(self, text: str) -> None:
        with pytest.raises(UsageError, match="give one like http://host:8000/v1"):
            Endpoint(text)

    @pytest.mark.parametrize("text", [f"http://me:{KEY}@host", f"me:{KEY}@host:1", f"http://host?key={KEY}"])
    def test_credentials_in_a_url_are_refused_without_being_repeated(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            Endpoint(text)
        assert KEY not in str(caught.value)

    def test_a_header_that_http_cannot_carry_is_refused_without_being_repeated(self) -> None:
        with pytest.raises(UsageError, match="header 'X-Token'") as caught:
            Endpoint("http://host", headers={"X-Token": f"{KEY}\n"})
        assert KEY not in str(caught.value)

    @pytest.mark.parametrize("content", [None, "no certificate"])
    def test_a_ca_file_that_cannot_be_used_is_a_usage_error(self, content: str | None, tmp_path: Path) -> None:
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_text(content)

        async def enter() -> None:
            async with Endpoint("https://host", ca_file=path):
                pass

        with pytest.raises(UsageError, match="cannot use the CA file"):
            asyncio.run(enter())

    def test_a_client_of_ones_own_gets_the_settings(self) -> None:
        seen: list[tuple[Mapping[str, str], Bounds, bool]] = []

        def build(
            *, headers: Mapping[str, str], bounds: Bounds, tls: ssl.SSLContext, keep_alive: bool
        ) -> httpx.AsyncClient:
            seen.append((headers, bounds, keep_alive))
            return build_client(headers=headers, bounds=bounds, tls=tls, keep_alive=keep_alive)

        assert one(whole_answer(4), client=build, headers={"X-Team": "blue"}).end is End.FINISHED
        assert seen == [({"X-Team": "blue"}, PATIENT, True), ({"X-Team": "blue"}, PATIENT, False)]


def test_the_server_gets_what_was_sent_and_no_more() -> None:
    def handle(request: Received) -> Script:
        assert int(request.headers["content-length"]) == len(request.body)
        return whole_answer(4)

    async def use(server: FakeServer, endpoint: Endpoint) -> None:
        await fly(HttpEngine(endpoint, "m"))
        assert (server.received[0].method, server.received[0].path) == ("POST", "/v1/chat/completions")

    against(handle, use)
