"""The simulated engine behind a real HTTP port, as an OpenAI-compatible server that resembles vLLM.

`slo-bench simulate` runs it, so that every part that talks to a server can be tried without a GPU.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slo_bench.hosts.simulated import MODEL_ID
from slo_bench.simulate.metrics import ServerMetrics
from slo_bench.simulate.wire import (
    DONE,
    Asked,
    Frames,
    RefusalError,
    TokenizeBody,
    chat_words,
    check_model,
    error_frame,
    read,
    read_chat,
    read_completion,
    token_id,
)
from traffic.clock import running_clock
from traffic.errors import UsageError
from traffic.records import End, Flight, Request
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel

SHUTDOWN_LIMIT_S = 1
"""How long open connections may take to read their last frames when the server stops."""

_BACKLOG = 2048


class SimulatedServer:
    """The routes over one engine. It neither starts nor stops the engine."""

    def __init__(self, engine: SimulatedEngine, metrics: ServerMetrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._numbers = itertools.count(1)

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._scrape),
                Route("/v1/models", self._models),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ],
            exception_handlers={RefusalError: _refuse},
        )

    @property
    def _max_model_len(self) -> int:
        return self._engine.model.settings.max_model_len

    async def _health(self, _request: HttpRequest) -> Response:
        return Response()

    async def _scrape(self, _request: HttpRequest) -> Response:
        return Response(self._metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _models(self, _request: HttpRequest) -> Response:
        card = {
            "id": MODEL_ID,
            "object": "model",
            "created": int(running_clock().utc_s()),
            "owned_by": "slo-bench",
            "root": MODEL_ID,
            "parent": None,
            "max_model_len": self._max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def _tokenize(self, request: HttpRequest) -> Response:
        body = read(TokenizeBody, await request.body())
        check_model(body.model, MODEL_ID)
        if (body.prompt is None) == (body.messages is None):
            raise RefusalError("give either a prompt or messages")
        words = body.prompt.split() if body.prompt is not None else chat_words(body.messages or ())
        tokens = [token_id(word) for word in words]
        answer = {"count": len(tokens), "max_model_len": self._max_model_len, "tokens": tokens, "token_strs": None}
        return JSONResponse(answer)

    async def _chat(self, request: HttpRequest) -> Response:
        return self._answer(read_chat(await request.body(), MODEL_ID, self._max_model_len))

    async def _complete(self, request: HttpRequest) -> Response:
        return self._answer(read_completion(await request.body(), MODEL_ID, self._max_model_len))

    def _answer(self, asked: Asked) -> Response:
        number = next(self._numbers)
        answer_id = f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{number:016x}"
        frames = Frames(asked, answer_id, MODEL_ID, int(running_clock().utc_s()))
        request = Request(
            index=number,
            due_s=0.0,
            kind="http",
            input_tokens=asked.input_tokens,
            output_tokens=asked.output_tokens,
        )
        return _Answer(self._engine, self._metrics, asked, frames, request)


async def _refuse(_request: HttpRequest, error: Exception) -> Response:
    if not isinstance(error, RefusalError):
        raise error
    return JSONResponse(error.body, status_code=error.status)


class _Answer(Response):
    """Runs one request while its client is there; a client that leaves aborts it.

    A response of its own, not a StreamingResponse: the tokens of one wake-up leave in one write, however many they are.
    """

    def __init__(
        self, engine: SimulatedEngine, metrics: ServerMetrics, asked: Asked, frames: Frames, request: Request
    ) -> None:
        super().__init__()
        self._engine = engine
        self._metrics = metrics
        self._asked = asked
        self._frames = frames
        self._request = request
        self._flight = Flight()
        self._news = asyncio.Event()
        self._got = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; see the ASGI specification."""
        running = asyncio.create_task(self._engine.generate(self._request, self._flight, self._on_token))
        leaving = asyncio.create_task(_until_gone(receive))
        for task in (running, leaving):
            task.add_done_callback(lambda _: self._news.set())
        try:
            if self._asked.stream:
                await self._stream(running, leaving, send)
            else:
                await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    await self._whole()(scope, receive, send)
        finally:
            running.cancel()
            leaving.cancel()
            await asyncio.gather(running, leaving, return_exceptions=True)
            if self._flight.end is None:
                self._metrics.abort()

    def _on_token(self, _now_s: float, count: int) -> None:
        self._got += count
        self._news.set()

    async def _stream(self, running: asyncio.Task[None], leaving: asyncio.Task[None], send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sent = 0
        while not running.done() or sent < self._got:
            await self._news.wait()
            self._news.clear()
            if leaving.done():
                return
            if self._got > sent:
                body = self._frames.tokens(sent, self._got - sent)
                sent = self._got
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": self._tail(), "more_body": False})

    def _tail(self) -> bytes:
        if self._flight.end is not End.FINISHED:
            return error_frame(self._flight.error) + DONE
        return (self._frames.usage() if self._asked.include_usage else b"") + DONE

    def _whole(self) -> Response:
        if self._flight.end is not End.FINISHED:
            refusal = RefusalError(self._flight.error, status=500, kind="InternalServerError")
            return JSONResponse(refusal.body, status_code=refusal.status)
        return JSONResponse(self._frames.whole())


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals are the command's business, which cancels us."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()


async def serve(
    settings: EngineSettings,
    *,
    seed: int,
    host: str,
    port: int,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until cancelled. on_ready gets the base URL once connections are accepted; port 0 takes any free one.

    Raises UsageError when the address cannot be used. On cancellation streams that are under way end with an error
    frame, and nothing is left behind.
    """
    listener = _listen(host, port)
    model = StepModel(settings, seed, origin_s=asyncio.get_running_loop().time())
    metrics = ServerMetrics(model, MODEL_ID)
    engine = SimulatedEngine(model, metrics.step)
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        SimulatedServer(engine, metrics).app(),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
    )
    server = _Server(config, lambda: on_ready(url) if on_ready else None)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
    try:
        async with engine:
            await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} of {host} is taken; choose another with --port") from None
        raise UsageError(f"cannot listen on {host}:{port}: {error}") from None
