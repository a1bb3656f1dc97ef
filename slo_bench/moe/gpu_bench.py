"""A KernelBench and a KernelCompiler that are processes on a GPU, under the interpreter that has vLLM.

The process connects to a Unix socket of ours; lines of JSON go both ways (`gpu_worker/serving.py`), arrays by file. It
is a server's process in all other ways: a log and a session of its own, ended for certain with all its children.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slo_bench.hosts.vllm_process import ServerProcess
from slo_bench.moe.bench import Batch, BenchFacts, Case, Checked, Compiled, Effort, Layer, Timed
from slo_bench.moe.shape import Quantisation
from traffic.errors import EngineError, UsageError
from traffic.sse import one_line

PROGRAM = Path(__file__).with_name("gpu_worker") / "__main__.py"

BLOCK = 128
"""Of FP8 weights, the sides of the blocks that share a scale: what can be timed."""

_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of silence before a process counts as stuck. connect_s: Python starts; facts_s: vLLM is imported."""

    connect_s: float = 60.0
    facts_s: float = 400.0
    prepare_s: float = 300.0
    measure_s: float = 180.0
    compile_s: float = 900.0
    leave_s: float = 5.0


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Where processes run. python: has vLLM. log_folder: has a log for each. gpu: as CUDA_VISIBLE_DEVICES names it.

    cache: Triton's compiled kernels, shared by all. Of both, None takes what the environment says.
    """

    python: Path
    log_folder: Path
    cache: Path | None = None
    gpu: str | None = None
    program: Path = PROGRAM
    limits: Limits = field(default_factory=Limits)

    def environment(self, *, is_compiler: bool) -> dict[str, str]:
        """Of a process; a compiler's libraries keep to one core."""
        env = {**os.environ, "NO_COLOR": "1"}
        if self.cache is not None:
            env["TRITON_CACHE_DIR"] = str(self.cache)
        if self.gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = self.gpu
        return {**env, "OMP_NUM_THREADS": "1"} if is_compiler else env


async def start_bench(place: GpuPlace, name: str = "bench") -> GpuBench:
    """A process that checks and times; its facts are known. name: of its log. Raises EngineError."""
    worker = await Worker.start(place, name, is_compiler=False)
    try:
        said = await worker.ask("facts", place.limits.facts_s, measures_bandwidth=True)
        return GpuBench(worker, place.limits, facts_of(said))
    except BaseException:
        await worker.close()
        raise


async def start_compiler(
    place: GpuPlace, layer: Layer, batches: Sequence[Batch], name: str = "compiler"
) -> GpuCompiler:
    """A process that compiles for this layer's batches. Raises UsageError and EngineError."""
    _check(layer)
    worker = await Worker.start(place, name, is_compiler=True)
    try:
        await _prepare(worker, place.limits.facts_s, layer, batches, is_compile_only=True)
        return GpuCompiler(worker, place.limits)
    except BaseException:
        await worker.close()
        raise


class GpuBench:
    """One GPU that checks and times."""

    def __init__(self, worker: Worker, limits: Limits, facts: BenchFacts) -> None:
        self._worker, self._limits, self._facts = worker, limits, facts
        self._orders = 0

    @property
    def facts(self) -> BenchFacts:
        """What answers."""
        return self._facts

    async def prepare(self, layer: Layer, batches: Sequence[Batch]) -> None:
        """Weights and inputs on the GPU. Raises UsageError for a layer that cannot be timed."""
        _check(layer)
        await _prepare(self._worker, self._limits.prepare_s, layer, batches, is_compile_only=False)

    async def check(self, cases: Sequence[Case]) -> Sequence[Checked]:
        """Each case's result against float32, in the order given."""
        said = await self._worker.ask("check", self._limits.measure_s, cases=[_line(case) for case in cases])
        return [
            Checked(case, each["error"], each["failure"]) for case, each in zip(cases, said["checked"], strict=True)
        ]

    async def time(self, cases: Sequence[Case], effort: Effort) -> Sequence[Timed]:
        """Interleaved times, in the order given."""
        self._orders += 1
        said = await self._worker.ask(
            "time",
            self._limits.measure_s,
            cases=[_line(case) for case in cases],
            rounds=effort.rounds,
            calls=effort.calls,
            is_graph=effort.is_graph,
            most_s=effort.most_s,
            seed=self._orders,
        )
        return [
            Timed(case, tuple(each["times_s"]), each["failure"])
            for case, each in zip(cases, said["timed"], strict=True)
        ]

    async def close(self) -> None:
        """The process ends, its memory with it."""
        await self._worker.close()


class GpuCompiler:
    """One process that compiles into the cache on disk and launches nothing."""

    def __init__(self, worker: Worker, limits: Limits) -> None:
        self._worker, self._limits = worker, limits

    async def compile(self, entry: Mapping[str, int]) -> Compiled:
        """Every specialisation of the kernel that the layer's batches need under this configuration."""
        said = await self._worker.ask("compile", self._limits.compile_s, entry=dict(entry))
        return Compiled(entry, float(said["took_s"]), said["failure"])

    async def close(self) -> None:
        """The process ends; a compilation under way is lost."""
        await self._worker.close()


class Worker:
    """The process and the conversation with it: one request at a time.

    A request that is given up, by its deadline or by us, leaves answers under way: nothing can be asked after it.
    """

    def __init__(self, process: ServerProcess, log_path: Path, scratch: tempfile.TemporaryDirectory[str]) -> None:
        self.folder = Path(scratch.name)
        self._process, self._log_path, self._scratch = process, log_path, scratch
        self._lines: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_usable = True

    @classmethod
    async def start(
        cls, place: GpuPlace, name: str, *, is_compiler: bool, settings: Mapping[str, str] | None = None
    ) -> Worker:
        """Start it and wait until it has connected. settings: of its environment. Raises EngineError."""
        scratch = tempfile.TemporaryDirectory(prefix="slo-bench-")
        address, log_path = f"{scratch.name}/s", place.log_folder / f"{name}.log"
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )

        def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not connected.done():
                connected.set_result((reader, writer))

        try:
            server = await asyncio.start_unix_server(on_connection, address, limit=_LINE_BYTES)
        except BaseException:
            scratch.cleanup()
            raise
        try:
            process = ServerProcess(
                [str(place.python), "-u", str(place.program), address],
                env={**place.environment(is_compiler=is_compiler), **(settings or {})},
                log_path=log_path,
            )
        except BaseException:
            server.close()
            scratch.cleanup()
            raise
        worker = cls(process, log_path, scratch)
        try:
            worker._lines = await worker._connected(connected, place.limits.connect_s)
        except BaseException:
            await worker.close()
            raise
        finally:
            server.close()  # of the listening socket alone; to wait for it would be to wait for the conversation
        return worker

    async def ask(self, command: str, silence_s: float, **fields: Any) -> dict[str, Any]:
        """What it answers. Raises UsageError for what it refuses, EngineError where it dies or falls silent."""
        if self._lines is None or not self._is_usable:
            raise EngineError(f"the kernel process was given up before; its log is {self._log_path}")
        reader, writer = self._lines
        self._is_usable = False
        with suppress(ConnectionError):  # what it died of is found below
            writer.write(json.dumps({"do": command, **fields}).encode() + b"\n")
            await writer.drain()
        while True:
            line = await self._line(reader, command, silence_s)
            if "done" not in line:
                break
        self._is_usable = True
        if "refused" in line:
            raise UsageError(str(line["refused"]))
        answer: dict[str, Any] = line["answer"]
        return answer

    async def close(self) -> None:
        """Say that it is the end, then end it in any case."""
        try:
            if self._lines is not None:
                writer, self._lines = self._lines[1], None
                writer.close()  # it leaves when the conversation does
            await self._process.stop(grace_s=1.0)
        finally:
            self._scratch.cleanup()

    async def _connected(
        self, connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]], limit_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while not connected.done():
            await asyncio.wait({connected}, timeout=_POLL_S)
            if not connected.done() and self._process.exit_code() is not None:
                raise self._dead()
            if not connected.done() and loop.time() > deadline_s:
                raise EngineError(f"the kernel process did not start in {limit_s:g} s; its log is {self._log_path}")
        return connected.result()

    async def _line(self, reader: asyncio.StreamReader, command: str, silence_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(silence_s):
                data = await reader.readline()
        except TimeoutError:
            raise EngineError(
                f"the kernel process has said nothing for {silence_s:g} s at {command}; its log is {self._log_path}"
            ) from None
        except ConnectionError:  # it died with words of ours unread
            data = b""
        except ValueError as error:
            raise EngineError(f"the kernel process cannot be understood ({one_line(str(error))})") from None
        if not data.endswith(b"\n"):
            await self._gone()
            raise self._dead()
        line: dict[str, Any] = json.loads(data)
        return line

    async def _gone(self) -> None:
        """Until it is dead, after it hung up, for a moment at the most."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _GONE_S
        while self._process.exit_code() is None and loop.time() < deadline_s:  # noqa: ASYNC110 - another process
            await asyncio.sleep(_POLL_S)

    def _dead(self) -> EngineError:
        death = self._process.death()
        hint = "; give the interpreter that has vLLM with --vllm-python" if "ModuleNotFoundError" in death else ""
        return EngineError(f"the kernel process ended: {death}{hint}; its log is {self._log_path}")


_POLL_S, _GONE_S = 0.05, 10.0


def facts_of(said: Mapping[str, Any]) -> BenchFacts:
    """As the process told them."""
    return BenchFacts(
        device=said["device"],
        shared_bytes=said["shared_bytes"],
        cores=said["cores"],
        versions=said["versions"],
        bandwidth_bps=said["bandwidth_bps"],
        uuid=said["uuid"],
        l2_bytes=said["l2_bytes"],
        config_folder=Path(said["config_folder"]),
    )


async def _prepare(
    worker: Worker, silence_s: float, layer: Layer, batches: Sequence[Batch], *, is_compile_only: bool
) -> None:
    shape, held = layer.shape, layer.shape.held_by(layer.rank)
    told = []
    for number, batch in enumerate(batches):
        paths = []
        for draw_number, ids in enumerate(batch.draws[:1] if is_compile_only else batch.draws):
            paths.append(str(worker.folder / f"{number}-{draw_number}.npy"))
            np.save(paths[-1], ids)
        told.append({"tokens": batch.tokens, "routing": batch.routing, "draws": paths})
    if is_compile_only:  # what is compiled depends on the count of tokens, not on where they go
        told = list({batch["tokens"]: batch for batch in told}.values())
    await worker.ask(
        "prepare",
        silence_s,
        shape={
            "experts": shape.experts,
            "columns": shape.columns,
            "hidden": shape.hidden,
            "top_k": shape.top_k,
            "first": held.start,
            "held": len(held),
        },
        is_fp8=layer.quantisation.dtype is not None,
        block=BLOCK,
        weight_sets=layer.weight_sets,
        batches=told,
        seed=0,
        is_compile_only=is_compile_only,
    )


def _check(layer: Layer) -> None:
    shape, quantisation = layer.shape, layer.quantisation
    if quantisation not in (Quantisation(), Quantisation("fp8_w8a8", (BLOCK, BLOCK))):
        kind = quantisation.dtype if quantisation.block_shape is None else f"{quantisation.dtype} with other blocks"
        raise UsageError(f"{kind} cannot be timed: only BF16, and FP8 in blocks of {BLOCK} x {BLOCK}, can")
    if quantisation.dtype is not None and (shape.columns % BLOCK or shape.hidden % BLOCK):
        raise UsageError(f"FP8 blocks need N and K that {BLOCK} divides, and they are {shape.columns}, {shape.hidden}")


def _line(case: Case) -> dict[str, Any]:
    return {"entry": dict(case.entry), "tokens": case.batch[0], "routing": case.batch[1]}
