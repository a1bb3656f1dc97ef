"""The options of `slo-bench kernels`."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import field_validator, model_validator

from slo_bench.engine_options import option
from slo_bench.moe.layer_options import CaseOptions
from slo_bench.options import StringList

_TIMING, _WHERE = "what is timed", "where"
FOLDER_NAME = "VLLM_TUNED_CONFIG_FOLDER"


class KernelsOptions(CaseOptions):
    """Which layer is timed, how, and where the times go."""

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
    label: str | None = option(None, "name of the run (default: kernels-N)", group=_WHERE)
    runs_dir: Path = option(Path("runs"), "where runs are kept", group=_WHERE, metavar="DIR")

    @field_validator("label")
    @classmethod
    def _is_a_name(cls, label: str | None) -> str | None:
        if label is not None and (not label or label.startswith(".") or "/" in label):
            raise ValueError(f"{label!r} is no name for a folder")
        return label

    @field_validator("folder", "vllm_python", "runs_dir")
    @classmethod
    def _home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    @model_validator(mode="after")
    def _makes_sense(self) -> KernelsOptions:
        if self.shape is None and (self.dtype is not None or self.block_shape is not None):
            raise ValueError("--dtype and --block-shape go with --shape; a model says them itself")
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is no folder")
        return self

    def engine_kind(self) -> str:
        """What the loop needs to know: whether anything outside of this process is met."""
        return "simulated" if self.simulated else "vllm"

    def tuned_folder(self) -> Path | None:
        """Where a tuned file may be: as named, or where vLLM itself would look."""
        named = os.environ.get(FOLDER_NAME)
        return self.folder or (Path(named) if named else None)
