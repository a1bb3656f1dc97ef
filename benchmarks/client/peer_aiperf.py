"""AIPerf: several processes around a broker; it names each request in a header, and tells when it let each one go."""

from __future__ import annotations

from pathlib import Path

from environments import Wanted
from load import MODEL, CannotRunError, Client, Command, Load, Place, Said
from pydantic import BaseModel, ConfigDict, ValidationError

NAME = "aiperf"
WANTED = Wanted(NAME, "aiperf==0.13.0", ("python3.11", "python3.12"), 1.2)
_ARTIFACTS, _OUT = "artifacts", "profile_export.jsonl"
_MS = 1000


class Value(BaseModel):
    """A metric; the unit is checked, since a release may choose another."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    value: float
    unit: str


class Metadata(BaseModel):
    """credit_issued_ns: of UTC, when its own scheduler let the request go."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    x_request_id: str
    credit_issued_ns: int


class Metrics(BaseModel):
    """Of one request; absent where it failed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    time_to_first_token: Value | None = None
    inter_token_latency: Value | None = None


class Line(BaseModel):
    """One request of the export."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    metadata: Metadata
    metrics: Metrics
    error: object | None = None


def command(python: Path, load: Load, place: Place) -> Command:
    """It takes a tokenizer from a folder only while both of Hugging Face's offline switches are empty."""
    words = {
        "model": MODEL,
        "url": place.url,
        "endpoint-type": "chat",
        "tokenizer": place.tokenizer,
        "request-rate": load.rate_rps,
        "arrival-pattern": "poisson",
        "request-count": load.requests,
        "synthetic-input-tokens-mean": load.words,
        "synthetic-input-tokens-stddev": 0,
        "output-tokens-mean": load.tokens,
        "output-tokens-stddev": 0,
        "extra-inputs": "ignore_eos:true",
        "random-seed": load.repeat,
        "artifact-dir": place.folder / _ARTIFACTS,
        "ui": "none",
    }
    argv = [word for name, value in words.items() for word in (f"--{name}", f"{value}")]
    return Command(
        [str(python.with_name("aiperf")), "profile", "--streaming", "--use-server-token-count", *argv],
        {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""},
    )


def read(load: Load, folder: Path) -> Said:
    """Its export, one line per request."""
    try:
        text = (folder / _ARTIFACTS / _OUT).read_text()
        lines = [Line.model_validate_json(line) for line in text.splitlines()]
    except (OSError, ValidationError) as error:
        raise CannotRunError(f"it left no export: {error}") from error
    good = [each.metrics for each in lines if each.error is None and each.metrics.time_to_first_token is not None]
    return Said(
        asked=load.requests,
        finished=len(good),
        ttft_s=[_seconds(each.time_to_first_token) for each in good if each.time_to_first_token],
        tpot_s=[_seconds(each.inter_token_latency) for each in good if each.inter_token_latency],
        due_utc_s=[each.metadata.credit_issued_ns / 1e9 for each in lines],
        names=frozenset(each.metadata.x_request_id for each in lines),
    )


def _seconds(metric: Value) -> float:
    if metric.unit != "ms":
        raise CannotRunError(f"its export counts in {metric.unit}; this reader knows ms")
    return metric.value / _MS


def client(python: Path) -> Client:
    return Client(NAME, python, command, read)
