"""The options of `slo-bench tune`, and the layer, sizes and routings that they name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import field_validator, model_validator

from slo_bench.engine_options import option
from slo_bench.moe.layer_options import LAYER, CaseOptions
from slo_bench.options import StringList

_SEARCH, _WHERE, _VLLM = "the search", "where", "vLLM's own tuner"


class TuneOptions(CaseOptions):
    """What is tuned, how long, and where the file goes."""

    model: str | None = option(
        None, "local model folder; with --tuner vllm also a name on the hub", group=LAYER, metavar="FOLDER"
    )
    batch_size: StringList = option(
        [], "batch size in tokens, repeatable (default: all that vLLM's own tuner has)", group=_SEARCH, metavar="N"
    )
    routing: StringList = option(
        [],
        "uniform, concentrated or zipf-S, repeatable: the first decides, under the others no size may become slower "
        "(default: uniform, concentrated)",
        group=_SEARCH,
        metavar="NAME",
    )
    minutes: float | None = option(
        None, "budget of the search (default: until all is tried)", group=_SEARCH, metavar="N", gt=0
    )
    compilers: int | None = option(
        None, "processes that compile (default: all cores but two)", group=_SEARCH, metavar="N", ge=1
    )
    seed: int = option(0, "what tokens go to which expert", group=_SEARCH, metavar="N")
    simulated: bool = option(
        default=False, description="no GPU: times from a model of the kernel, marked SIMULATED", group=_SEARCH
    )
    output: Path | None = option(
        None, "folder for the file (default: TUNED_MOE_DIR or ~/moe-tuned)", group=_WHERE, metavar="DIR"
    )
    resume: bool = option(default=False, description="go on with the search that the folder holds", group=_WHERE)
    vllm_python: Path | None = option(
        None, "interpreter that has vLLM (default: this one)", group=_WHERE, metavar="PATH"
    )
    shipped: Path | None = option(
        None, "folder of the files that vLLM ships (default: the one of its installation)", group=_WHERE, metavar="DIR"
    )
    tuner: Literal["own", "vllm"] = option("own", "vllm: its benchmark_moe.py, exactly as published", group=_VLLM)
    vllm_checkout: Path | None = option(
        None, "with --tuner vllm: a clone of vLLM at the installed release", group=_VLLM, metavar="DIR"
    )

    @field_validator("output", "vllm_python", "shipped", "vllm_checkout")
    @classmethod
    def _home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    @model_validator(mode="after")
    def _makes_sense(self) -> TuneOptions:
        if self.shape is None and (self.dtype is not None or self.block_shape is not None) and self.tuner == "own":
            raise ValueError("--dtype and --block-shape go with --shape; a model says them itself")
        if self.simulated and self.output is None:
            raise ValueError("--simulated needs --output DIR: the default folder is one that servers read")
        if self.tuner == "vllm" and (self.vllm_checkout is None or self.model is None or self.simulated):
            raise ValueError("--tuner vllm needs --vllm-checkout DIR and --model, and a GPU")
        if self.tuner == "vllm" and (self.minutes is not None or self.resume or self.routing):
            raise ValueError("--tuner vllm takes no --minutes, --resume or --routing: it keeps nothing before its end")
        return self

    def engine_kind(self) -> str:
        """What the loop needs to know: whether anything outside of this process is met."""
        return "simulated" if self.simulated else "vllm"

    def folder(self) -> Path:
        """Where the file goes: --output, TUNED_MOE_DIR as the published command has it, or ~/moe-tuned."""
        return self.output or Path(os.environ.get("TUNED_MOE_DIR") or "~/moe-tuned").expanduser()
