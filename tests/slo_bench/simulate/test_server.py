import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from slo_bench.hosts.simulated import MODEL_ID
from slo_bench.simulate.metrics import ServerMetrics
from slo_bench.simulate.server import SimulatedServer, serve
from traffic.errors import UsageError
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel
from traffic.virtual_time import run_virtual

SAMPLES = Path(__file__).parents[2] / "vllm_samples"
SETTINGS = EngineSettings(max_model_len=1000)
FAST = EngineSettings(overhead_s=0.001, dense_read_s=0.0, expert_read_s=0.001, first_shape_cost_s=0.0)
CHAT = {"model": MODEL_ID, "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4}
USAGE = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}

App = Callable[..., Coroutine[Any, Any, None]]


@asynccontextmanager
async def application() -> AsyncIterator[tuple[App, SimulatedEngine]]:
    model = StepModel(SETTINGS, 0)
    metrics = ServerMetrics(model, MODEL_ID)
    async with SimulatedEngine(model, metrics.step) as engine:
        yield SimulatedServer(engine, metrics).app().__call__, engine


def exchange(*calls: tuple[str, str, Any]) -> list[httpx.Response]:
    """Call after call against one in-process server, under virtual time."""

    async def run() -> list[httpx.Response]:
        async with application() as (app, _):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://simulated") as client:
                return [
                    await client.request(method, path, content=body if isinstance(body, bytes) else json.dumps(body))
                    for method, path, body in calls
                ]

    return run_virtual(run())


def post(path: str, body: Any) -> httpx.Response:
    return exchange(("POST", path, body))[0]


def frames(text: str) -> list[Any]:
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def assert_has_no_other_fields(ours: Any, theirs: Any) -> None:
    """Every field of ours is one of vLLM's, at every depth, and of the same type where both have a value."""
    if isinstance(ours, dict):
        assert set(ours) <= set(theirs)
        for key, value in ours.items():
            if value is not None and theirs[key] is not None:
                assert_has_no_other_fields(value, theirs[key])
    elif isinstance(ours, list):
        for one, other in zip(ours, theirs, strict=False):
            assert_has_no_other_fields(one, other)
    else:
        assert type(ours) is type(theirs)


def test_a_chat_stream_has_the_frames_of_vllm() -> None:
    answer = post("/v1/chat/completions", {**CHAT, **USAGE})
    assert answer.headers["content-type"].startswith("text/event-stream")
    ours, theirs = frames(answer.text), frames((SAMPLES / "chat_stream.sse").read_text())
    assert_has_no_other_fields(ours[0], theirs[0])
    assert_has_no_other_fields(ours[1], theirs[1])
    assert_has_no_other_fields(ours[-2], theirs[-2])
    assert_has_no_other_fields(ours[-1], theirs[-1])
    assert ours[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [frame["usage"]["completion_tokens"] for frame in ours] == [0, 1, 2, 3, 4, 4]
    assert [frame["choices"][0]["finish_reason"] for frame in ours[:-1]] == [None] * 4 + ["length"]
    assert ours[-1]["choices"] == []
    assert ours[-1]["usage"]["prompt_tokens"] == 3
    assert {frame["model"] for frame in ours} == {MODEL_ID}
    assert len({frame["id"] for frame in ours}) == 1


def test_a_completion_stream_has_the_frames_of_vllm() -> None:
    answer = post("/v1/completions", {"prompt": [1, 2], "max_tokens": 3, "stream": True})
    ours, theirs = frames(answer.text), frames((SAMPLES / "completions_stream.sse").read_text())
    assert_has_no_other_fields(ours[0], theirs[0])
    assert len(ours) == 3
    assert "usage" not in ours[0]


def test_a_whole_answer_has_the_fields_of_vllm() -> None:
    answer = post("/v1/chat/completions", CHAT)
    assert_has_no_other_fields(answer.json(), json.loads((SAMPLES / "chat_nonstream.json").read_text()))
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert len(answer.json()["choices"][0]["message"]["content"].split()) == 4


def test_models_tokenize_and_health_answer_like_vllm() -> None:
    models, tokens, chat_tokens, health = exchange(
        ("GET", "/v1/models", b""),
        ("POST", "/tokenize", {"model": MODEL_ID, "prompt": "one two one"}),
        ("POST", "/tokenize", {"messages": CHAT["messages"]}),
        ("GET", "/health", b""),
    )
    assert_has_no_other_fields(models.json(), json.loads((SAMPLES / "models.json").read_text()))
    assert models.json()["data"][0]["max_model_len"] == 1000
    assert_has_no_other_fields(tokens.json(), json.loads((SAMPLES / "tokenize_chat.json").read_text()))
    assert tokens.json()["count"] == chat_tokens.json()["count"] == len(tokens.json()["tokens"]) == 3
    assert tokens.json()["tokens"][0] == tokens.json()["tokens"][2] != tokens.json()["tokens"][1]
    assert (health.status_code, health.content) == (200, b"")


def test_refusals_have_the_status_and_shape_of_vllm() -> None:
    too_long, unknown, broken, neither = exchange(
        ("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5000}),
        ("POST", "/v1/completions", {"model": "other", "prompt": "x"}),
        ("POST", "/v1/completions", b'{"prompt": '),
        ("POST", "/tokenize", {}),
    )
    assert [answer.status_code for answer in (too_long, unknown, broken, neither)] == [400, 404, 400, 400]
    theirs = json.loads((SAMPLES / "error_400.txt").read_text().split("\n", 1)[1])
    assert_has_no_other_fields(too_long.json(), theirs)
    assert too_long.json()["error"]["type"] == theirs["error"]["type"]
    assert unknown.json()["error"]["type"] == "NotFoundError"


def test_metrics_use_names_that_vllm_uses() -> None:
    _, scrape = exchange(("POST", "/v1/chat/completions", CHAT), ("GET", "/metrics", b""))
    names = set(re.findall(r"^(vllm:\w+)\{", scrape.text, re.MULTILINE))
    theirs = set(re.findall(r"^(vllm:\w+)\{", (SAMPLES / "metrics_idle.txt").read_text(), re.MULTILINE))
    assert names <= theirs
    assert {"vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total"} <= names
    assert f'vllm:generation_tokens_total{{engine="0",model_name="{MODEL_ID}"}} 4.0' in scrape.text


def scope(path: str) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "http_version": "1.1"}


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_aborts_its_request(is_stream: bool) -> None:
    async def run() -> None:
        body = json.dumps({"prompt": "x", "max_tokens": 900, "stream": is_stream}).encode()
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async with application() as (app, engine):
            call = asyncio.create_task(app(scope("/v1/completions"), messages.get, send))
            await asyncio.sleep(1.0)
            assert engine.model.running == 1
            messages.put_nowait({"type": "http.disconnect"})
            await call
            assert engine.model.running == engine.model.kv_tokens == 0
            assert bool(sent) is is_stream
            assert b"[DONE]" not in b"".join(message.get("body", b"") for message in sent)
            await engine.wait_idle()
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://s") as client:
                scrape = (await client.get("/metrics")).text
            assert re.search(r'request_success_total\{.*"abort".*\} 1.0', scrape)

    run_virtual(run())


def test_a_slow_reader_gets_every_token_in_fewer_writes() -> None:
    async def run() -> None:
        body = json.dumps({"prompt": "x", "max_tokens": 100, "stream": True}).encode()
        waiting = asyncio.Event()
        received = iter([{"type": "http.request", "body": body, "more_body": False}])
        sent: list[bytes] = []

        async def receive() -> dict[str, Any]:
            for message in received:
                return message
            await waiting.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message.get("body", b""))
            await asyncio.sleep(0.2)

        async with application() as (app, _):
            await app(scope("/v1/completions"), receive, send)
        assert len(sent) < 20
        assert len(frames(b"".join(sent).decode())) == 100

    run_virtual(run())


def test_an_engine_that_stops_ends_its_streams_with_an_error_frame() -> None:
    async def run() -> str:
        async with application() as (app, engine):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://simulated") as client:
                call = asyncio.create_task(
                    client.post("/v1/chat/completions", json={**CHAT, **USAGE, "max_tokens": 500})
                )
                await asyncio.sleep(1.0)
                await engine.__aexit__(None, None, None)
                return (await call).text

    *_, last = frames(run_virtual(run()))
    assert last["error"] == {
        "message": "the engine was stopped",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }


def test_it_serves_on_a_real_port_until_cancelled_and_says_when_a_port_is_taken() -> None:
    def fetch(url: str) -> bytes:
        body = json.dumps({**CHAT, **USAGE}).encode()
        request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            content: bytes = answer.read()
            return content

    async def run() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(FAST, seed=0, host="127.0.0.1", port=0, on_ready=ready.set_result))
        url = await asyncio.wait_for(ready, 5)
        assert len(frames((await asyncio.to_thread(fetch, url)).decode())) == 6
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is taken"):
            await serve(FAST, seed=0, host="127.0.0.1", port=port)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        with pytest.raises(OSError, match="failed"):
            await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(run())


def test_an_address_that_is_not_ours_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 192.0.2.1:0"):
        asyncio.run(serve(FAST, seed=0, host="192.0.2.1", port=0))
