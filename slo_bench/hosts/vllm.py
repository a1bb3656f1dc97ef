"""A server of our own: started, waited for until it answers, watched, and stopped for certain."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from slo_bench.hosts import EngineFacts
from slo_bench.hosts.attached import AttachedHost
from slo_bench.hosts.gpu_memory import Baseline, GpuGuard
from slo_bench.hosts.launch import (
    TUNED_VARIABLE,
    Installation,
    Invocation,
    Mount,
    Wanted,
    Way,
    find_vllm,
    on_host,
    refuse_ours,
)
from slo_bench.hosts.loading import recorded_environment, shown_command, told
from slo_bench.hosts.log_facts import compilations
from slo_bench.hosts.vllm_process import (
    LOOPBACK,
    ServerProcess,
    hold_port,
    is_free,
    listener,
    port_becomes_free,
)
from traffic.endpoint import Endpoint
from traffic.errors import EngineError, SloBenchError, UsageError
from traffic.http_client import Bounds, BuildClient, build_client
from traffic.http_engine import HttpEngine
from traffic.recipe import EngineRecipe
from traffic.records import Message
from traffic.server_facts import Look

__all__ = ["Installation", "VllmHost", "find_vllm"]

_POLL_S = 0.2
_PORT_LIMIT_S = 10.0
_STARTS = 2
_PORT_TAKEN = ("address already in use", "port is already allocated")
_QUICK = Bounds(connect_s=1.0, stall_s=2.0, total_s=2.0, call_s=2.0)


class VllmHost:
    """A host that owns one server.

    engine_args: further options for it, except where it listens and what it serves. env: added to this process's
    environment. way: how it is started, by default with the vLLM of `python`, which is this interpreter by default.
    port: None takes a free one. tuned_dir: a folder of MoE configuration files. gpus: the proofs about GPU memory.
    log_path: where its output goes. served_name: the model's name in requests, `model` by default. ready_timeout_s:
    from the start of the process to a first answer. grace_s: from SIGTERM to SIGKILL. on_progress: called with a line
    now and then while it loads, after progress_s of silence at the latest.

    Entering raises EngineError with the root cause from the log when the server dies or does not get ready, for a port
    that somebody has, and for a GPU that somebody holds; leaving raises it when the server's processes, its port or its
    GPU memory cannot be shown to be free. Raises UsageError for an option that is the host's.
    """

    def __init__(
        self,
        model: str,
        *,
        log_path: Path,
        engine_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        way: Way | None = None,
        python: Path | None = None,
        port: int | None = None,
        tuned_dir: Path | None = None,
        gpus: GpuGuard | None = None,
        served_name: str | None = None,
        extra_body: Mapping[str, object] | None = None,
        bounds: Bounds | None = None,
        start: int = 0,
        ready_timeout_s: float = 1800.0,
        grace_s: float = 15.0,
        on_progress: Callable[[str], None] = lambda _: None,
        progress_s: float = 15.0,
        client: BuildClient = build_client,
    ) -> None:
        if way is None:
            refuse_ours(engine_args)
        else:
            way.check_args(engine_args)
        self._model = model
        self._log_path = log_path
        self._engine_args = tuple(engine_args)
        self._named = frozenset(env or {})
        self._env = _environment(env or {}, tuned_dir)
        self._way = way
        self._python = python or Path(sys.executable)
        self._wanted_port = port
        self._tuned_dir = tuned_dir
        self._gpus = gpus or GpuGuard()
        self._served_name = served_name
        self._extra_body = extra_body
        self._bounds = bounds
        self._start = start
        self._ready_timeout_s = ready_timeout_s
        self._grace_s = grace_s
        self._on_progress = on_progress
        self._progress_s = progress_s
        self._build = client
        self._port = 0
        self._process: ServerProcess | None = None
        self._mounts: tuple[Mount, ...] = ()
        self._baseline: Baseline | None = None
        self._attached: AttachedHost | None = None
        self._facts: EngineFacts | None = None

    def __repr__(self) -> str:
        return f"VllmHost({self._model!r})"

    async def __aenter__(self) -> Self:
        async with told(self._on_progress, self.log_text, silence_s=self._progress_s):
            await self._start_up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._attached is not None:
                await self._attached.__aexit__(kind, error, trace)
        finally:
            await self._bring_down()

    @property
    def engine(self) -> HttpEngine:
        """Where requests go."""
        return self._running.engine

    @property
    def facts(self) -> EngineFacts:
        """What is known of the server."""
        if self._facts is None:
            raise RuntimeError("enter the host before using it")
        return self._facts

    @property
    def endpoint(self) -> Endpoint:
        """The connection, for calls beside the load."""
        return self._running.endpoint

    @property
    def recipe(self) -> EngineRecipe:
        """How other processes send to the same server."""
        return self._running.recipe

    @property
    def needs_text(self) -> bool:
        """A real server needs prompts."""
        return True

    async def count_tokens(self, messages: Sequence[Message]) -> int | None:
        """The server's count of a prompt, chat template included. Raises EngineError."""
        return await self._running.count_tokens(messages)

    def check(self) -> None:
        """Raise EngineError, with the log's root cause, when the server's process has ended. Costs one system call."""
        if self._process is not None and self._process.exit_code() is not None:
            raise EngineError(f"engine died: {self._death(self._process)}; the whole log is {self._log_path}")

    def look(self) -> Look | None:
        """How to look at the server's own counts; None where it shows none."""
        return self._running.look()

    async def wait_idle(self, limit_s: float) -> None:
        """Return when nothing is queued or running. Raises EngineError after limit_s, or when the server is dead."""
        self.check()
        try:
            await self._running.wait_idle(limit_s)
        except EngineError:
            self.check()
            raise

    def pids(self) -> frozenset[int]:
        """The server's living processes; a `GpuGuard` of a server beside it lets them hold memory."""
        return frozenset() if self._process is None else self._process.pids()

    def log_text(self) -> str:
        """What the running server has written, with the paths that its files have on this machine."""
        return "" if self._process is None else on_host(self._process.log_text(), self._mounts)

    def compilations(self) -> tuple[str, ...] | None:
        """What its log tells of compiling, autotuning and capturing graphs since the last call."""
        return None if self._process is None else compilations(self._process.new_log_text())

    @property
    def _running(self) -> AttachedHost:
        if self._attached is None:
            raise RuntimeError("enter the host before using it")
        return self._attached

    def _death(self, process: ServerProcess) -> str:
        return on_host(process.death(), self._mounts)

    async def _start_up(self) -> None:
        if self._wanted_port is not None:
            await self._refuse_taken(self._wanted_port)
        way = self._way or await find_vllm(self._python, self._env)
        for left in reversed(range(_STARTS)):
            try:
                await self._bring_up(way)
            except EngineError as error:
                # Between our letting go of the port and the server's taking it lie seconds of imports.
                is_taken = any(words in str(error).lower() for words in _PORT_TAKEN)
                if not left or not is_taken or self._wanted_port is not None:
                    raise
            else:
                break

    async def _refuse_taken(self, port: int) -> None:
        """Raise EngineError, with what it serves, when somebody has the port: it would be measured in our place."""
        if is_free(port):
            return
        names = ""
        with suppress(SloBenchError):
            async with Endpoint(f"http://{LOOPBACK}:{port}", bounds=_QUICK, client=self._build) as endpoint:
                names = ", ".join(card.name for card in await endpoint.models() or ())
        who = f"a server that answers there already, with {names}" if names else "another program"
        raise EngineError(f"port {port} is taken by {who}: end it, or choose another port")

    async def _bring_up(self, way: Way) -> None:
        loop = asyncio.get_running_loop()
        invocation = await self._prepared(way)
        began_s = loop.time()
        self._mounts = invocation.mounts
        self._process = process = ServerProcess(
            invocation.command, env=invocation.env, log_path=self._log_path, container=invocation.container
        )
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                attached = await self._answering(way, process)
        except BaseException as error:
            await self._give_up(way, process, error)
            raise
        details = {
            **attached.facts.details,
            **way.facts,
            "command": shown_command(invocation.command),
            "env": recorded_environment(invocation.env),
            "pid": process.pid,
            "gpu_driver": None if self._baseline is None else self._baseline.driver,
            "gpu_memory_before_mib": None if self._baseline is None else dict(self._baseline.used_mib),
            "ready_s": loop.time() - began_s,
        }
        version = attached.facts.version or way.version
        self._facts = replace(attached.facts, kind="vllm", version=version, details=details)
        self._attached = attached

    async def _prepared(self, way: Way) -> Invocation:
        """A port, the memory baseline, and what to run; a free port is held until all else is known."""
        holder, self._port = (None, self._wanted_port) if self._wanted_port is not None else hold_port()
        try:
            self._baseline = await self._gpus.before_start(self._env) if way.uses_gpu else None
            return way.invocation(
                Wanted(
                    model=self._model,
                    served_name=self._served_name or self._model,
                    port=self._port,
                    args=self._engine_args,
                    env=self._env,
                    folder=self._log_path.parent,
                    tuned_dir=self._tuned_dir,
                    named=self._named,
                )
            )
        finally:
            if holder is not None:
                holder.close()

    async def _answering(self, way: Way, process: ServerProcess) -> AttachedHost:
        """Wait for /health and then for a real answer; ends early when the process does."""
        url = f"http://{LOOPBACK}:{self._port}"
        async with Endpoint(url, bounds=_QUICK, client=self._build) as endpoint:
            while not await endpoint.is_healthy():
                if process.exit_code() is not None:
                    raise EngineError("ended")
                await asyncio.sleep(_POLL_S)
        attached = AttachedHost(
            url,
            model=self._served_name or (self._model if way.takes_name else None),
            extra_body=self._extra_body,
            bounds=self._bounds,
            start=self._start,
            client=self._build,
        )
        await attached.__aenter__()
        stranger = listener(self._port) if way.takes_name else None
        if process.exit_code() is not None or (stranger is not None and stranger not in process.pids()):
            await attached.__aexit__(None, None, None)
            raise EngineError(f"port {self._port} is answered by process {stranger}, which is not ours: end it")
        return attached

    async def _give_up(self, way: Way, process: ServerProcess, error: BaseException) -> None:
        """Stop a server that did not get ready, and raise what that means; for a cancellation only stop it."""
        death = None if process.exit_code() is None else self._death(process)
        after = ""
        try:
            await process.stop(grace_s=self._grace_s)
            self._process = None
            await self._gpus.after_stop(self._baseline)
        except EngineError as trouble:
            after = f"; and {trouble}"
        if not isinstance(error, Exception):
            return
        if death is not None:
            raise EngineError(
                f"{way.title} ended before it was ready: {death}; its log is {self._log_path}{after}"
            ) from None
        if isinstance(error, TimeoutError):
            limit_s = self._ready_timeout_s
            raise EngineError(f"{way.title} was not ready within {limit_s:g} s; see {self._log_path}{after}") from None
        if after:
            raise EngineError(f"{error}{after}") from None

    async def _bring_down(self) -> None:
        if self._process is None:
            return
        await self._process.stop(grace_s=self._grace_s)
        self._process = None
        if not await port_becomes_free(self._port, _PORT_LIMIT_S):
            raise EngineError(f"somebody still listens on port {self._port} after vLLM was stopped; end that process")
        await self._gpus.after_stop(self._baseline)


def _environment(env: Mapping[str, str], tuned_dir: Path | None) -> dict[str, str]:
    """The server's environment.

    PYTHONSAFEPATH: a folder of the working directory that happens to be called like a package must not be imported.
    VLLM_API_KEY would lock us out of a server that nobody else can reach anyway. Raises UsageError for a tuned_dir that
    is no folder: vLLM would use its defaults and say so only in its log.
    """
    own = {"NO_COLOR": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1"}
    merged = {**os.environ, **own, **env}
    merged.pop("VLLM_API_KEY", None)
    if tuned_dir is not None:
        if not tuned_dir.is_dir():
            raise UsageError(f"{tuned_dir} is no folder of tuned MoE configuration files")
        merged[TUNED_VARIABLE] = str(tuned_dir.absolute())
    return merged
