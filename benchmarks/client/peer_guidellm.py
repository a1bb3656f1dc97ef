"""GuideLLM: up to ten worker processes over httpx, each with its own share of the schedule."""

from __future__ import annotations

from pathlib import Path

from environments import Wanted
from load import MODEL, CannotRunError, Client, Command, Load, Place, Said
from pydantic import BaseModel, ConfigDict, ValidationError

NAME = "guidellm"
WANTED = Wanted(NAME, "guidellm==0.8.1", ("python3.11", "python3.12"), 6.1)
_OUT = "benchmarks.json"
_MS = 1000


class Timings(BaseModel):
    """targeted_start: seconds of UTC, when the request should have gone."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    targeted_start: float | None


class Info(BaseModel):
    """What its scheduler knows of a request."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    timings: Timings


class Stats(BaseModel):
    """One answered request."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    info: Info
    time_to_first_token_ms: float | None
    inter_token_latency_ms: float | None


class Requests(BaseModel):
    """By their end; of the others only the number is wanted."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    successful: tuple[Stats, ...]
    incomplete: tuple[object, ...]
    errored: tuple[object, ...]


class Benchmark(BaseModel):
    """One rate."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    requests: Requests


class Report(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    benchmarks: tuple[Benchmark, ...]


def command(python: Path, load: Load, place: Place) -> Command:
    """Ended by the number of requests: by time it would cut off the last ones."""
    words = {
        "backend": f"kind=openai_http,target={place.url},model={MODEL}",
        "profile": f"kind=poisson,rate={load.rate_rps:g}",
        "constraint": f"kind=max_requests,count={load.requests}",
        "data": f"kind=synthetic_text,prompt_tokens={load.words},output_tokens={load.tokens}",
        "tokenizer": f"kind=hf_auto,model={place.tokenizer}",
        "seed": f"kind=static,value={load.repeat}",
        "output": f"kind=json,path={place.folder / _OUT}",
    }
    argv = [word for name, value in words.items() for word in (f"--{name}", value)]
    return Command(
        [str(python.with_name("guidellm")), "run", "--disable-console", *argv],
        {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
    )


def read(load: Load, folder: Path) -> Said:
    """Its report."""
    try:
        report = Report.model_validate_json((folder / _OUT).read_bytes())
    except (OSError, ValidationError) as error:
        raise CannotRunError(f"it left no report: {error}") from error
    found = [each.requests for each in report.benchmarks]
    good = [each for requests in found for each in requests.successful]
    due = [each.info.timings.targeted_start for each in good]
    return Said(
        asked=load.requests,
        finished=len(good),
        ttft_s=[each.time_to_first_token_ms / _MS for each in good if each.time_to_first_token_ms is not None],
        tpot_s=[each.inter_token_latency_ms / _MS for each in good if each.inter_token_latency_ms is not None],
        due_utc_s=[each for each in due if each is not None],
    )


def client(python: Path) -> Client:
    return Client(NAME, python, command, read)
