"""genai-bench: locust and requests. It has no request rate, so it gets a closed loop of as many as are in flight."""

from __future__ import annotations

import math
from pathlib import Path

from environments import Wanted
from load import MODEL, CannotRunError, Client, Command, Load, Place, Said
from pydantic import BaseModel, ConfigDict, ValidationError

NAME = "genai-bench"
WANTED = Wanted(NAME, "genai-bench==0.0.5", ("python3.11", "python3.12"), 1.3)
_FOLDER = "genai"
_OUT = "D*_time_*.json"


class Metrics(BaseModel):
    """One request, seconds; error_code stands where it failed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    ttft: float | None
    tpot: float | None
    error_code: int | None


class Aggregated(BaseModel):
    """num_requests: all that came to an end."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    num_requests: int


class Result(BaseModel):
    """The file of one concurrency."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    aggregated_metrics: Aggregated
    individual_request_metrics: tuple[Metrics, ...]


def concurrency(load: Load) -> int:
    """What is in flight at the asked rate, by Little's law, if the client costs no time."""
    return max(1, round(load.rate_rps * load.answer_s))


def command(python: Path, load: Load, place: Place) -> Command:
    """At most so many whole minutes: its limit has no smaller unit."""
    words = {
        "api-backend": "vllm",
        "api-base": place.url,
        "api-key": "none",
        "api-model-name": MODEL,
        "model-tokenizer": place.tokenizer,
        "task": "text-to-text",
        "num-concurrency": concurrency(load),
        "traffic-scenario": f"D({load.words},{load.tokens})",
        "max-time-per-run": math.ceil(4 * load.seconds / 60),
        "max-requests-per-run": load.requests,
        "experiment-base-dir": place.folder,
        "experiment-folder-name": _FOLDER,
        "server-engine": "vLLM",
        "log-dir": place.folder,
    }
    argv = [word for name, value in words.items() for word in (f"--{name}", f"{value}")]
    return Command(
        [str(python.with_name("genai-bench")), "benchmark", *argv],
        {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "ENABLE_UI": "false"},
    )


def read(load: Load, folder: Path) -> Said:
    """Its one result file."""
    del load
    try:
        (path,) = (folder / _FOLDER).glob(_OUT)
        result = Result.model_validate_json(path.read_bytes())
    except (OSError, ValueError, ValidationError) as error:
        raise CannotRunError(f"it left no result: {error}") from error
    good = [each for each in result.individual_request_metrics if each.error_code in {None, 200}]
    return Said(
        asked=result.aggregated_metrics.num_requests,
        finished=len(good),
        ttft_s=[each.ttft for each in good if each.ttft is not None],
        tpot_s=[each.tpot for each in good if each.tpot is not None],
    )


def client(python: Path) -> Client:
    return Client(NAME, python, command, read)
