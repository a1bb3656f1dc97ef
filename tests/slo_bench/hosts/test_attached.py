import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from fake_server import (
    DONE,
    HOLD,
    FakeServer,
    Handler,
    Received,
    Script,
    answer,
    by_path,
    event,
    finish,
    head,
    in_turn,
    reply,
    streamed,
    token,
    whole_answer,
)

from slo_bench.hosts.attached import AttachedHost, is_loopback, requests_in_server
from traffic.errors import EngineError, UsageError
from traffic.http_client import Bounds
from traffic.records import End, Flight, Message, Request

SAMPLES = Path(__file__).parents[2] / "vllm_samples"
CHAT = "/v1/chat/completions"
FIRST = whole_answer(16, pause_s=0.02)
BOUNDS = Bounds(connect_s=2.0, stall_s=2.0, total_s=2.0, call_s=2.0)
Page = Script | Handler


def models(*names: str) -> Script:
    return reply(200, {"object": "list", "data": [{"id": name, "max_model_len": 2048} for name in names]})


def gauges(running: float, waiting: float) -> Script:
    lines = [
        "# TYPE vllm:num_requests_running gauge",
        f'vllm:num_requests_running{{engine="0",model_name="a {{b}}"}} {running}',
        f'vllm:num_requests_waiting{{engine="0"}} {waiting}',
        f'vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} {waiting}',
    ]
    body = "\n".join([*lines, ""]).encode()
    return [(0.0, head("text/plain", f"Content-Length: {len(body)}") + body)]


def entered(
    pages: Mapping[str, Page],
    use: Callable[[FakeServer, AttachedHost], Awaitable[None]] | None = None,
    **settings: object,
) -> FakeServer:
    """Enter a host on a server with these pages, one model "m" and a first answer unless they say otherwise."""
    given = {"bounds": BOUNDS, "settle_s": 0.01, "poll_s": 0.01, **settings}

    async def run() -> FakeServer:
        async with FakeServer(by_path({"/v1/models": models("m"), CHAT: FIRST, **pages})) as server:
            async with AttachedHost(f"{server.url}/v1", **given) as host:  # type: ignore[arg-type]
                if use is not None:
                    await use(server, host)
            return server

    return asyncio.run(run())


def picky(*refused: str, status: int = 400) -> Handler:
    """A server that does not know these fields."""

    def handle(request: Received) -> Script:
        options = request.json.get("stream_options", {})
        for field in refused:
            if field in request.json or field in options:
                return reply(status, {"error": {"message": f"Unrecognized request argument supplied: {field}"}})
        return FIRST

    return handle


class TestModel:
    def test_the_only_listed_model_is_taken(self) -> None:
        async def use(server: FakeServer, host: AttachedHost) -> None:
            assert (host.facts.kind, host.facts.model, host.facts.max_model_len) == ("attached", "m", 2048)
            assert (host.facts.version, host.facts.takes_forced_length, host.facts.start) == ("0.32.0", True, 3)
            assert host.facts.details == {"url": server.url}
            assert host.needs_text
            host.check()
            flight = Flight()
            await host.engine.generate(Request(1, 0.0, "chat", 5, 16, messages=(Message("user", "Hi"),)), flight)
            assert flight.end is End.FINISHED

        entered({"/version": reply(200, {"version": "0.32.0"})}, use, start=3)

    def test_a_model_that_is_not_there_is_a_usage_error_that_lists_what_is(self) -> None:
        with pytest.raises(UsageError, match="has no model 'x'; it has: a, b"):
            entered({"/v1/models": models("a", "b")}, model="x")

    @pytest.mark.parametrize("names", [(), ("a", "b")])
    def test_without_a_name_there_must_be_exactly_one(self, names: tuple[str, ...]) -> None:
        with pytest.raises(UsageError, match=f"name the one to measure: {', '.join(names) or 'none'}"):
            entered({"/v1/models": models(*names)})

    def test_a_server_without_a_list_needs_a_name(self) -> None:
        nothing = reply(404, {"detail": "Not Found"})
        with pytest.raises(UsageError, match="does not list its models"):
            entered({"/v1/models": nothing})

        async def use(_: FakeServer, host: AttachedHost) -> None:
            assert (host.facts.model, host.facts.max_model_len, host.facts.version) == ("m", None, None)

        entered({"/v1/models": nothing}, use, model="m")


class TestFirstAnswer:
    def test_a_server_that_is_not_there_cannot_be_reached(self) -> None:
        async def run() -> None:
            async with AttachedHost("http://127.0.0.1:1"):
                pass

        with pytest.raises(EngineError, match=r"cannot reach http://127\.0\.0\.1:1: .*refused; is the server running"):
            asyncio.run(run())

    def test_a_server_that_does_not_stream_is_refused(self) -> None:
        body = (SAMPLES / "chat_nonstream.json").read_bytes()
        whole = [(0.0, head("application/json", f"Content-Length: {len(body)}") + body)]
        with pytest.raises(EngineError, match=r"the server does not stream: .*only a stream can be measured"):
            entered({CHAT: whole})

    def test_a_proxy_that_collects_the_stream_is_refused_after_a_second_look(self) -> None:
        words = [event(token("x", usage=index + 1)) for index in range(16)]
        at_once = streamed([(0.0, b"".join([*words, event(finish(usage=16)), event(DONE)]))])
        with pytest.raises(EngineError, match="does not stream: all 16 tokens came at once"):
            entered({CHAT: at_once})
        apart = [(0.001, event(token("x", usage=index + 1))) for index in range(64)]
        longer = streamed([*apart, (0.0, event(finish(usage=64)) + event(DONE))])
        server = entered({CHAT: in_turn(at_once, longer)})
        asked = [each.json["max_tokens"] for each in server.received if each.path == CHAT]
        assert asked == [16, 64]

    @pytest.mark.parametrize("status", [400, 422])
    @pytest.mark.parametrize("field", ["min_tokens", "ignore_eos"])
    def test_a_server_that_names_a_length_field_is_asked_without_them(self, field: str, status: int) -> None:
        async def use(_: FakeServer, host: AttachedHost) -> None:
            assert not host.facts.takes_forced_length

        server = entered({CHAT: picky(field, status=status)}, use)
        last = [received for received in server.received if received.path == CHAT][-1].json
        assert not {"min_tokens", "ignore_eos"} & last.keys()

    def test_a_server_that_names_continuous_usage_is_asked_without_it(self) -> None:
        async def use(_: FakeServer, host: AttachedHost) -> None:
            assert host.facts.takes_forced_length

        server = entered({CHAT: picky("continuous_usage_stats")}, use)
        assert [received.path for received in server.received].count(CHAT) == 2

    def test_a_server_may_know_none_of_them(self) -> None:
        entered({CHAT: picky("continuous_usage_stats", "ignore_eos", "min_tokens")})

    def test_a_server_that_ignores_the_forced_length_does_not_take_it(self) -> None:
        async def use(_: FakeServer, host: AttachedHost) -> None:
            assert not host.facts.takes_forced_length

        entered({CHAT: whole_answer(2, reason="stop", pause_s=0.02)}, use)

    def test_r04_a_server_that_fails_is_refused_with_its_own_words(self) -> None:
        with pytest.raises(EngineError, match="does not answer a first request: HTTP 500: engine failed"):
            entered({CHAT: reply(500, {"error": {"message": "engine failed"}})})
        with pytest.raises(EngineError, match="server error in the stream: engine failed"):
            entered({CHAT: answer(token("a"), {"error": "engine failed"})})

    def test_r05_a_stream_without_finish_reason_is_refused(self) -> None:
        with pytest.raises(EngineError, match="truncated"):
            entered({CHAT: answer(token("a"))})

    def test_a_wrong_key_is_the_callers_fault_and_is_not_repeated(self) -> None:
        with pytest.raises(UsageError, match="refuses a first request: HTTP 401") as caught:
            entered({CHAT: reply(401, {"error": "Incorrect API key: sk-secret"})}, api_key="sk-secret")
        assert "sk-secret" not in str(caught.value)

    def test_r13_a_first_request_that_never_ends_ends_by_its_bound(self) -> None:
        with pytest.raises(EngineError, match=r"did not finish a first request of 16 tokens within 0\.05 s"):
            entered({CHAT: [HOLD]}, first_answer_s=0.05)

    def test_nothing_is_left_open_when_entering_fails(self) -> None:
        async def run() -> None:
            pages = {"/v1/models": models("m"), CHAT: answer(token("a"), finish("abort"))}
            async with FakeServer(by_path(pages)) as server:
                host = AttachedHost(server.url)
                with pytest.raises(EngineError, match="aborted"):
                    await host.__aenter__()
                with pytest.raises(RuntimeError, match="enter the endpoint"):
                    await host.endpoint.models()

        asyncio.run(run())


class TestTokens:
    def test_the_server_counts_the_prompt(self) -> None:
        async def use(server: FakeServer, host: AttachedHost) -> None:
            assert await host.count_tokens([Message("user", "Hi")]) == 15
            assert server.received[-1].json["model"] == "m"

        entered({"/tokenize": reply(200, {"count": 15, "max_model_len": 2048, "tokens": []})}, use)

    def test_a_server_that_cannot_count_is_asked_once(self) -> None:
        async def use(server: FakeServer, host: AttachedHost) -> None:
            assert await host.count_tokens([Message("user", "Hi")]) is None
            assert await host.count_tokens([Message("user", "Hi")]) is None
            assert [received.path for received in server.received].count("/tokenize") == 1

        entered({}, use)


class TestIdle:
    def test_vllms_gauges_are_read_from_its_own_text(self) -> None:
        assert requests_in_server((SAMPLES / "metrics_idle.txt").read_text()) == (0, 0)
        assert requests_in_server("python_info 1\n") is None

    def test_it_is_idle_when_two_looks_in_a_row_find_nothing(self) -> None:
        looks = [gauges(2, 1), gauges(0, 0), gauges(0, 3), gauges(0, 0), gauges(0, 0), gauges(7, 0)]

        async def use(server: FakeServer, host: AttachedHost) -> None:
            await host.wait_idle(2.0)
            assert [received.path for received in server.received].count("/metrics") == 5

        entered({"/metrics": in_turn(*looks)}, use)

    def test_a_look_that_fails_is_no_rest(self) -> None:
        looks = [gauges(0, 0), [(0.0, None)], gauges(0, 0), gauges(0, 0)]

        async def use(server: FakeServer, host: AttachedHost) -> None:
            await host.wait_idle(2.0)
            assert len(server.received) >= 4

        entered({"/metrics": in_turn(*looks)}, use)

    def test_a_server_that_does_not_come_to_rest_is_an_engine_error(self) -> None:
        async def use(_: FakeServer, host: AttachedHost) -> None:
            with pytest.raises(EngineError, match=r"is not idle after 0\.05 s: 2 running, 1 waiting"):
                await host.wait_idle(0.05)

        entered({"/metrics": gauges(2, 1)}, use)

    @pytest.mark.parametrize("page", [{}, {"/metrics": [(0.0, head("text/plain", "Content-Length: 0"))]}])
    def test_a_server_without_gauges_is_left_alone_for_a_while(self, page: Mapping[str, Page]) -> None:
        async def use(_: FakeServer, host: AttachedHost) -> None:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await host.wait_idle(5.0)
            assert 0.03 <= loop.time() - began_s < 1.0

        entered(page, use, settle_s=0.03)


class TestWhere:
    @pytest.mark.parametrize(
        "url",
        [
            "http://localhost:8000",
            "http://127.0.0.1/v1",
            "http://127.9.9.9",
            "https://[::1]:1",
            "http://0.0.0.0:8000",
            "http://api.localhost",
            "localhost:8000",
            "http://[::ffff:127.0.0.1]:1",
            "HTTP://LOCALHOST.",
        ],
    )
    def test_this_machine_is_loopback(self, url: str) -> None:
        assert is_loopback(url)

    @pytest.mark.parametrize(
        "url", ["http://10.0.0.5:8000", "https://api.example.com/v1", "http://localhost.example.com", "http://", ""]
    )
    def test_other_machines_are_not(self, url: str) -> None:
        assert not is_loopback(url)


def test_a_host_is_used_after_it_was_entered() -> None:
    host = AttachedHost("http://127.0.0.1:1", api_key="sk-secret")
    assert repr(host) == "AttachedHost('http://127.0.0.1:1')"
    for name in ("engine", "facts"):
        with pytest.raises(RuntimeError, match="enter the host"):
            getattr(host, name)


def test_a_server_with_vllms_counts_can_be_looked_at_and_one_without_cannot() -> None:
    async def use(_: FakeServer, host: AttachedHost) -> None:
        assert (host.look() is not None) is shows

    for shows in (True, False):
        pages = {"/metrics": gauges(0, 0)} if shows else {}
        entered(pages, use)
