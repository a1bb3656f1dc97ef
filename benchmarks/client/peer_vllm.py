"""vLLM's own client, `vllm bench serve`, over the interpreter of an environment that has vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from load import MODEL, CannotRunError, Client, Command, Load, Place, Said
from pydantic import BaseModel, ConfigDict, ValidationError

NAME = "vllm bench serve"
DOOR = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
"""Its command line needs the metadata of a distribution named vllm, which builds for the CPU lack."""

_OUT = "bench.json"


class Detailed(BaseModel):
    """What --save-detailed adds, one entry per request in the order of sending: seconds, starts of CLOCK_MONOTONIC.

    queue_times: of each start, how much came after the moment at which its schedule let it go.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    completed: int
    output_lens: tuple[int, ...]
    ttfts: tuple[float, ...]
    latencies: tuple[float, ...]
    start_times: tuple[float, ...]
    queue_times: tuple[float, ...]
    errors: tuple[str, ...]


def command(python: Path, load: Load, place: Place) -> Command:
    """Without its ready check, which would be one request more."""
    words = {
        "backend": "openai-chat",
        "base-url": place.url,
        "endpoint": "/v1/chat/completions",
        "model": MODEL,
        "tokenizer": place.tokenizer,
        "dataset-name": "random",
        "random-input-len": load.words,
        "random-output-len": load.tokens,
        "num-prompts": load.requests,
        "request-rate": load.rate_rps,
        "seed": load.repeat,
        "ready-check-timeout-sec": 0,
        "result-dir": place.folder,
        "result-filename": _OUT,
    }
    argv = [word for name, value in words.items() for word in (f"--{name}", f"{value}")]
    flags = ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    return Command([str(python), "-c", DOOR, *argv, *flags], {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})


def read(load: Load, folder: Path) -> Said:
    """Its result file."""
    try:
        told = Detailed.model_validate_json((folder / _OUT).read_bytes())
    except (OSError, ValidationError) as error:
        raise CannotRunError(f"it left no result: {error}") from error
    good = [place for place, error in enumerate(told.errors) if not error]
    tokens = [told.output_lens[place] for place in good]
    return Said(
        asked=load.requests,
        finished=told.completed,
        ttft_s=[told.ttfts[place] for place in good],
        tpot_s=[
            (told.latencies[place] - told.ttfts[place]) / (n - 1)
            for place, n in zip(good, tokens, strict=True)
            if n > 1
        ],
        due_s=due_s(load, told.start_times, told.queue_times),
    )


def due_s(load: Load, start_s: Sequence[float], queue_s: Sequence[float]) -> list[float]:
    """When its requests should have gone: its schedule is drawn from its seed, and normed to last count / rate.

    Its start is not told. No request goes early, so it is put where the most punctual one was in time.
    """
    draw = np.random.RandomState(load.repeat)
    after_s = np.cumsum(draw.gamma(1.0, 1 / load.rate_rps, len(start_s)))
    after_s *= len(start_s) / load.rate_rps / after_s[-1]
    let_go_s = np.asarray(start_s) - np.asarray(queue_s)
    due: list[float] = (float(np.min(let_go_s - after_s)) + after_s).tolist()
    return due


def client(python: Path) -> Client:
    return Client(NAME, python, command, read)
