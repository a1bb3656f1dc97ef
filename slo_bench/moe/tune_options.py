"""The options of `slo-bench tune`, and the layer, sizes and routings that they name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import field_validator, model_validator

from slo_bench.engine_options import option
from slo_bench.hosts.moe_proof import USUAL_SIZES
from slo_bench.moe.routing import Routing, concentrated, uniform, zipf
from slo_bench.moe.shape import MoeShape, Quantisation, parse_shape, read_model
from slo_bench.options import Options, StringList
from traffic.errors import UsageError

_MODEL, _SEARCH, _WHERE, _VLLM = "the layer", "the search", "where", "vLLM's own tuner"
_ZIPF = re.compile(r"zipf(?:-(\d+(?:\.\d+)?))?")


class TuneOptions(Options):
    """What is tuned, how long, and where the file goes."""

    model: str | None = option(
        None, "local model folder; with --tuner vllm also a name on the hub", group=_MODEL, metavar="FOLDER"
    )
    shape: str | None = option(
        None,
        "the layer, in place of a model: E=128,N=768,K=2048,top-k=8 (and ,ep=4); E of all ranks, N on one",
        group=_MODEL,
    )
    dtype: str | None = option(None, "with --shape: fp8_w8a8, ... (default: BF16)", group=_MODEL)
    block_shape: str | None = option(None, "with --shape: blocks that share a scale", group=_MODEL, metavar="N,K")
    tensor_parallel_size: int = option(1, "ranks that share the model", group=_MODEL, metavar="N", ge=1)
    data_parallel_size: int = option(1, "replicas; experts are spread over them too", group=_MODEL, metavar="N", ge=1)
    enable_expert_parallel: bool = option(default=False, description="whole experts per rank", group=_MODEL)
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

    @field_validator("batch_size")
    @classmethod
    def _are_sizes(cls, words: list[str]) -> list[str]:
        for word in words:
            if not re.fullmatch(r"[1-9]\d{0,6}", word):
                raise ValueError(f"{word!r} is no number of tokens")
        return words

    @field_validator("routing")
    @classmethod
    def _are_routings(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in ("uniform", "concentrated") and not _ZIPF.fullmatch(name):
                raise ValueError(f"{name!r} is none of uniform, concentrated, zipf-1.0")
        if len(set(names)) < len(names):
            raise ValueError("each routing once")
        return names

    @field_validator("output", "vllm_python", "shipped", "vllm_checkout")
    @classmethod
    def _home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    @model_validator(mode="after")
    def _makes_sense(self) -> TuneOptions:
        if (self.model is None) == (self.shape is None):
            raise ValueError("give --model FOLDER or --shape E=128,N=768,K=2048,top-k=8, one of the two")
        if self.shape is None and (self.dtype is not None or self.block_shape is not None) and self.tuner == "own":
            raise ValueError("--dtype and --block-shape go with --shape; a model says them itself")
        ranks = self.tensor_parallel_size * self.data_parallel_size
        if self.shape is not None and (ranks > 1 or self.enable_expert_parallel):
            raise ValueError("--shape says itself what a rank holds (N and ep)")
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

    def layer(self) -> tuple[MoeShape, Quantisation]:
        """The layer as one rank holds it. Raises UsageError."""
        if self.shape is not None:
            return parse_shape(self.shape), Quantisation(self.dtype, parse_block(self.block_shape))
        model = read_model(Path(self.model or "").expanduser())
        ranks = self.tensor_parallel_size * self.data_parallel_size
        return model.shape(ranks=ranks, is_expert_parallel=self.enable_expert_parallel), model.quantisation

    def sizes(self) -> tuple[int, ...]:
        """Batch sizes in tokens, ascending."""
        return tuple(sorted({int(word) for word in self.batch_size} or USUAL_SIZES))

    def routings(self, shape: MoeShape) -> tuple[Routing, ...]:
        """The patterns, the one that decides first. Raises UsageError where the shape has no such."""
        return tuple(_routing(name, shape) for name in self.routing or ["uniform", "concentrated"])

    def folder(self) -> Path:
        """Where the file goes: --output, TUNED_MOE_DIR as the published command has it, or ~/moe-tuned."""
        return self.output or Path(os.environ.get("TUNED_MOE_DIR") or "~/moe-tuned").expanduser()


def _routing(name: str, shape: MoeShape) -> Routing:
    if name == "uniform":
        return uniform(shape)
    if name == "concentrated":
        return concentrated(shape)
    match = _ZIPF.fullmatch(name)
    return zipf(shape, float((match and match[1]) or 1.0))


def parse_block(text: str | None) -> tuple[int, int] | None:
    """Two whole numbers in `128,128`; None of None. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*\[?\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\]?\s*", text)
    if match is None:
        raise UsageError(f"--block-shape {text!r}: give two whole numbers, like 128,128")
    return int(match[1]), int(match[2])
