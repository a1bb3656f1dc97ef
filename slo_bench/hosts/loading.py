"""A server that loads: what is said of it meanwhile, and what engine.json records of its start."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from slo_bench.hosts.vllm_process import text_of
from traffic.sse import one_line

_POLL_S = 0.2
_PROGRESS = (
    "Model loading took",
    "Available KV cache memory",
    "Maximum concurrency for",
    "torch.compile took",
    "Graph capturing finished",
    "init engine",
    "Starting vLLM server on",
)
_RECORDED = re.compile(
    r"(?:VLLM|CUDA|NCCL|HF|TORCH|PYTORCH|TRITON|OMP|SGLANG|FLASHINFER)_\w+|LD_PRELOAD|LD_LIBRARY_PATH"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
_SECRET_OPTION = "--hf-token"  # noqa: S105 - the option's name


@asynccontextmanager
async def told(say: Callable[[str], None], log_text: Callable[[], str], *, silence_s: float) -> AsyncIterator[None]:
    """While inside, pass on the log's lines of progress; after silence_s without one, say that it still loads.

    log_text: what the server has written so far; it begins anew when the server is started again.
    """
    loop = asyncio.get_running_loop()
    began_s = said_s = loop.time()
    seen = 0

    def look() -> None:
        nonlocal said_s, seen
        lines = [text_of(line).strip() for line in log_text().splitlines() if line.strip()]
        progress = [line for line in lines if any(word in line for word in _PROGRESS)]
        news = progress[seen:]
        seen = len(progress)
        if not news and loop.time() - said_s >= silence_s:
            last = f"; last log line: {lines[-1]}" if lines else ""
            news = [f"still loading, {loop.time() - began_s:.0f} s{last}"]
        for line in news:
            say(one_line(line))
            said_s = loop.time()

    async def keep_looking() -> None:
        while True:
            look()
            await asyncio.sleep(_POLL_S)

    looking = asyncio.create_task(keep_looking())
    try:
        yield
        look()
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def shown_command(command: Sequence[str]) -> str:
    """The command as one line, without the value of an option that is a secret."""
    words = ["..." if before == _SECRET_OPTION else word for before, word in zip(["", *command], command, strict=False)]
    return shlex.join(f"{_SECRET_OPTION}=..." if word.startswith(f"{_SECRET_OPTION}=") else word for word in words)


def recorded_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change what an engine does, without those that are secrets."""
    return {name: env[name] for name in sorted(env) if _RECORDED.fullmatch(name) and not _SECRET.search(name)}
