"""The options of `slo-bench kernels`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator, model_validator

from slo_bench.engine_options import option
from slo_bench.moe.layer_options import CaseOptions, checked_sizes
from slo_bench.options import StringList

_TIMING, _WHERE, _GROUPED = "what is timed", "where", "flashinfer-grouped-gemm alone"
FOLDER_NAME = "VLLM_TUNED_CONFIG_FOLDER"
GROUPED_GEMM = "flashinfer-grouped-gemm"
GROUPED_SHAPE = "E=400,N=2048,K=4096,top-k=6,ep=8"
"""Experts, top-k and ranks of a public report on FlashInfer's estimate; it does not give N and K, which are ours."""


class KernelsOptions(CaseOptions):
    """Which layer is timed, how, and where the times go."""

    backend: Literal["vllm-triton", "flashinfer-grouped-gemm"] = option(
        "vllm-triton", "the kernel that is timed", group=_TIMING
    )
    batch_size: StringList = option(
        [], "batch size in tokens, repeatable (default: the usual ones of a file)", group=_TIMING, metavar="N"
    )
    routing: StringList = option(
        [],
        "uniform, concentrated or zipf-S, repeatable (default: uniform, concentrated)",
        group=_TIMING,
        metavar="NAME",
    )
    rounds: int = option(20, "rounds; each takes every case once, in an order of its own", group=_TIMING, ge=1)
    calls: int = option(10, "calls of the kernel in one CUDA graph", group=_TIMING, ge=1)
    seed: int = option(0, "what tokens go to which expert", group=_TIMING, metavar="N")
    simulated: bool = option(
        default=False, description="no GPU: times from a model of the kernel, marked SIMULATED", group=_TIMING
    )
    folder: Path | None = option(
        None, f"folder with a tuned file (default: {FOLDER_NAME})", group=_WHERE, metavar="DIR"
    )
    vllm_python: Path | None = option(
        None, "interpreter that has vLLM (default: this one)", group=_WHERE, metavar="PATH"
    )
    tokens: int = option(288, "tokens of the main comparison", group=_GROUPED, metavar="N", ge=1)
    estimate: StringList = option(
        [], "rows per expert to try, repeatable (default: where kernels change)", group=_GROUPED, metavar="N"
    )
    samples: int = option(24, "samples of each case", group=_GROUPED, metavar="N", ge=4)
    warm_ups: int = option(5, "samples before them that do not count", group=_GROUPED, metavar="N", ge=1)
    flashinfer: Path | None = option(
        None, "folder of the package with its sources (default: the interpreter's)", group=_GROUPED, metavar="DIR"
    )
    export_script: Path | None = option(
        None, "write a script for a bug report that needs no slo-bench; time nothing", group=_GROUPED, metavar="FILE"
    )
    label: str | None = option(None, "name of the run (default: kernels-N)", group=_WHERE)
    runs_dir: Path = option(Path("runs"), "where runs are kept", group=_WHERE, metavar="DIR")

    @model_validator(mode="before")
    @classmethod
    def _has_a_layer(cls, values: Any) -> Any:
        """The grouped GEMM needs no model: without a layer it is the published report's."""
        if isinstance(values, dict) and values.get("backend") == GROUPED_GEMM and not values.get("model"):
            return {**values, "shape": values.get("shape") or GROUPED_SHAPE}
        return values

    @field_validator("estimate")
    @classmethod
    def _are_estimates(cls, words: list[str]) -> list[str]:
        return checked_sizes(words)

    @field_validator("label")
    @classmethod
    def _is_a_name(cls, label: str | None) -> str | None:
        if label is not None and (not label or label.startswith(".") or "/" in label):
            raise ValueError(f"{label!r} is no name for a folder")
        return label

    @field_validator("folder", "vllm_python", "runs_dir", "flashinfer", "export_script")
    @classmethod
    def _home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    @model_validator(mode="after")
    def _makes_sense(self) -> KernelsOptions:
        if self.shape is None and (self.dtype is not None or self.block_shape is not None):
            raise ValueError("--dtype and --block-shape go with --shape; a model says them itself")
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is no folder")
        if self.backend == GROUPED_GEMM and self.folder is not None:
            raise ValueError("--folder has tile sizes for Triton; FlashInfer's grouped GEMM reads none")
        if self.backend != GROUPED_GEMM and self.export_script is not None:
            raise ValueError(f"--export-script goes with --backend {GROUPED_GEMM}")
        return self

    def engine_kind(self) -> str:
        """What the loop needs to know: whether anything outside of this process is met."""
        return "simulated" if self.simulated else "vllm"

    def tuned_folder(self) -> Path | None:
        """Where a tuned file may be: as named, or where vLLM itself would look."""
        named = os.environ.get(FOLDER_NAME)
        return self.folder or (Path(named) if named else None)
