"""FlashInfer's runner of the grouped GEMM by its plain C interface."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

import torch

from .building import CannotBuildError, Compiler, Library, Sources

_I64, _INT, _POINTER = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "slo_last_error": (ctypes.c_char_p, []),
    "slo_set_include_dir": (_INT, [ctypes.c_char_p]),
    "slo_tile": (_INT, [_I64, _I64, _I64, _I64, _I64, _INT, ctypes.POINTER(_INT)]),
    "slo_compile": (_INT, [_I64, _I64, _I64, _I64, _I64, _INT]),
    "slo_runner_new": (_POINTER, []),
    "slo_runner_delete": (None, [_POINTER]),
    "slo_workspace_bytes": (_I64, [_POINTER, _I64, _I64, _I64, _I64, _I64]),
    "slo_set_estimate": (_INT, [_POINTER, _I64, _I64, _I64, _I64, _I64]),
    "slo_set_workspace": (None, [_POINTER, _POINTER]),
    "slo_grouped_gemm": (
        _INT,
        [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _I64, _I64, _I64, _POINTER],
    ),
}

_H20_SMS, _H20_ROWS, _ROWS = 78, 64, 32


def swap_below(sms: int) -> int:
    """Estimates below this take the branch that swaps the matrices, as `grouped_gemm_dispatch` has it."""
    return _H20_ROWS if sms == _H20_SMS else _ROWS


@dataclass(frozen=True)
class Stage:
    """One matrix stage: n columns of its result, k of its rows, and the groups (experts) of the rank."""

    n: int
    k: int
    groups: int


class Gemm:
    """The library, loaded. Once per process: FlashInfer keeps where its kernels go."""

    def __init__(self, built: Library, sources: Sources, compiler: Compiler, sms: int) -> None:
        # Read by the library when it is loaded, and by nobody else.
        os.environ["TRTLLM_DG_CACHE_DIR"] = str(built.kernels)
        os.environ["TRTLLM_DG_NVCC_COMPILER"] = str(compiler.nvcc)
        os.environ.pop("TRTLLM_DG_ENABLED", None)  # 0 would launch another kernel, without any estimate
        try:
            ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)  # the library takes the driver's functions from it
            self._library = ctypes.CDLL(str(built.path))
        except OSError as error:
            raise CannotBuildError(
                f"{built.path} cannot be loaded: {error}; remove its folder to build it anew"
            ) from None
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self.sms = sms
        self.check(self._library.slo_set_include_dir(str(sources.jit_headers).encode()))

    def check(self, failed: int) -> None:
        """Raise what FlashInfer raised."""
        if failed:
            raise RuntimeError(f"FlashInfer: {self._library.slo_last_error().decode(errors='replace')}")

    def call(self, name: str, *arguments: Any) -> Any:
        """A function of the library, by its name."""
        return getattr(self._library, name)(*arguments)

    def is_swapped(self, estimate: int) -> bool:
        """Which branch this estimate takes on this card."""
        return estimate < swap_below(self.sms)

    def tile(self, stage: Stage, estimate: int) -> list[int]:
        """FlashInfer's own choice: rows, columns, stages; under the swapped branch rows are of the weights."""
        tile = (_INT * 3)()
        swapped = int(self.is_swapped(estimate))
        self.check(self.call("slo_tile", stage.n, stage.k, stage.groups, estimate, self.sms, swapped, tile))
        return list(tile)

    def compile(self, stage: Stage, estimate: int) -> None:
        """Compile the kernel of this estimate, unless it is in the cache."""
        swapped = int(self.is_swapped(estimate))
        self.check(self.call("slo_compile", stage.n, stage.k, stage.groups, estimate, self.sms, swapped))


class Runner:
    """A runner of its own for one estimate and capacity: nothing of an earlier, larger call is left in it.

    Sized for tokens x top_k rows, as the fused MoE does; then the estimate is set.
    """

    def __init__(self, gemm: Gemm, stages: tuple[Stage, Stage], tokens: int, top_k: int, estimate: int) -> None:
        self._gemm, self.stages, self.estimate = gemm, stages, estimate
        self._runner = gemm.call("slo_runner_new")
        sizes = [
            gemm.call("slo_workspace_bytes", self._runner, tokens, top_k, stage.n, stage.k, stage.groups)
            for stage in stages
        ]
        if min(sizes) < 0:
            gemm.check(1)
        self._workspace = torch.empty(max(sizes), dtype=torch.uint8, device="cuda")
        if estimate != tokens:
            last = stages[-1]
            rows = tokens * top_k
            gemm.check(gemm.call("slo_set_estimate", self._runner, estimate, rows, last.n, last.k, last.groups))
        gemm.call("slo_set_workspace", self._runner, self._workspace.data_ptr())

    def run(
        self,
        number: int,
        offsets: torch.Tensor,
        *,
        rows: torch.Tensor,
        weights: torch.Tensor,
        scales: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Enqueue matrix stage 0 or 1 on torch's current stream."""
        stage = self.stages[number]
        failed = self._gemm.call(
            "slo_grouped_gemm",
            self._runner,
            out.data_ptr(),
            rows.data_ptr(),
            weights.data_ptr(),
            scales.data_ptr(),
            offsets.data_ptr(),
            stage.groups,
            stage.n,
            stage.k,
            torch.cuda.current_stream().cuda_stream,
        )
        self._gemm.check(failed)

    def close(self) -> None:
        """Free it; no call may be under way."""
        self._gemm.call("slo_runner_delete", self._runner)
