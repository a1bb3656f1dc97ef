"""inference-perf of the Kubernetes project: worker processes over aiohttp, at most 100 requests each by default."""

from __future__ import annotations

import json
from pathlib import Path

from environments import Wanted
from load import MODEL, CannotRunError, Client, Command, Load, Place, Said
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

NAME = "inference-perf"
WANTED = Wanted(NAME, "inference-perf==0.7.0", ("python3.12", "python3.13"), 0.8)
_REPORTS, _OUT = "reports", "per_request_lifecycle_metrics.json"


class Computed(BaseModel):
    """Its own times of a request, seconds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    time_to_first_token: float | None
    time_per_output_token: float | None


class Entry(BaseModel):
    """One request."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    computed_metrics: Computed | None = None
    error: object | None = None


_ENTRIES = TypeAdapter(tuple[Entry, ...])


def command(python: Path, load: Load, place: Place) -> Command:
    """Its `random` data does not do chat, so this one asks for completions. The settings are JSON, which is YAML."""
    fields = {"request": False, "response": False, "info": False, "response_chunks": False, "computed_metrics": True}
    settings = {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": _fixed(load.words),
            "output_distribution": _fixed(load.tokens),
        },
        "load": {
            "type": "poisson",
            "interval": 0,
            "stages": [{"rate": load.rate_rps, "duration": max(1, round(load.seconds))}],
        },
        "server": {"type": "vllm", "model_name": MODEL, "base_url": place.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(place.tokenizer)},
        "report": {
            "request_lifecycle": {"per_request": True, "per_request_fields": fields, "use_server_output_tokens": True}
        },
        "storage": {"local_storage": {"path": str(place.folder / _REPORTS)}},
    }
    path = place.folder / "settings.yml"
    path.write_text(json.dumps(settings, indent=1))
    return Command([str(python.with_name("inference-perf")), "--config_file", str(path)], {"HF_HUB_OFFLINE": "1"})


def _fixed(tokens: int) -> dict[str, object]:
    return {"type": "fixed", "min": tokens, "max": tokens, "mean": tokens, "std_dev": 0}


def read(load: Load, folder: Path) -> Said:
    """Its report of single requests."""
    del load
    try:
        entries = _ENTRIES.validate_json((folder / _REPORTS / _OUT).read_bytes())
    except (OSError, ValidationError) as error:
        raise CannotRunError(f"it left no report: {error}") from error
    good = [each.computed_metrics for each in entries if each.error is None and each.computed_metrics is not None]
    return Said(
        asked=len(entries),
        finished=len(good),
        ttft_s=[each.time_to_first_token for each in good if each.time_to_first_token is not None],
        tpot_s=[each.time_per_output_token for each in good if each.time_per_output_token is not None],
    )


def client(python: Path) -> Client:
    return Client(NAME, python, command, read)
