"""The shared library with FlashInfer's grouped GEMM: its sources found, built once per host, kept under their hash."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_LEAST_CUDA = (12, 8)
_COMPILE_S = 900
"""Seconds for one source; the largest took 135 s of one core."""

_PARTS = ("envUtils", "logger", "stringUtils", "tllmException")
_DEFINES = ("COMPILE_HOPPER_TMA_GEMMS", "ENABLE_BF16", "ENABLE_FP8", "ENABLE_FP8_BLOCK_SCALE")
_FLAGS = (
    *("-std=c++17", "-O2", "-arch=sm_90a", "-w", "-Xcompiler", "-fPIC"),
    *("--expt-relaxed-constexpr", "--expt-extended-lambda"),
    *(f"-D{name}" for name in _DEFINES),
)
_LIBRARY = "libgrouped_gemm.so"


class CannotBuildError(Exception):
    """What is missing or failed, in one line."""


@dataclass(frozen=True)
class Sources:
    """FlashInfer's package folder, with its data/csrc, and its version."""

    folder: Path
    version: str

    @property
    def csrc(self) -> Path:
        """Its C++ and CUDA sources."""
        return self.folder / "data" / "csrc"

    @property
    def jit_headers(self) -> Path:
        """What has the headers of the kernels that it compiles on first use."""
        return self.csrc / "nv_internal" / "tensorrt_llm"

    @property
    def gemm(self) -> Path:
        """The grouped GEMM."""
        return self.jit_headers / "kernels" / "cutlass_kernels" / "fp8_blockscale_gemm" / "fp8_blockscale_gemm.cu"


@dataclass(frozen=True)
class Compiler:
    """nvcc, and what `nvcc --version` says of itself."""

    nvcc: Path
    version: str


@dataclass(frozen=True)
class Library:
    """What was built. key: of everything that went into it. is_new: it was not there before."""

    path: Path
    key: str
    is_new: bool

    @property
    def kernels(self) -> Path:
        """Where the kernels go that this library compiles on first use."""
        return self.path.parent / "kernels"


def find_sources(folder: Path | None) -> Sources:
    """FlashInfer in this folder, else as this interpreter would import it. Raises CannotBuildError."""
    if folder is None:
        spec = importlib.util.find_spec("flashinfer")
        places = None if spec is None else spec.submodule_search_locations
        if not places:
            raise CannotBuildError(
                f"FlashInfer is missing: {sys.executable} has no flashinfer; pip install flashinfer-python there, or "
                "name its folder with --flashinfer"
            )
        folder = Path(places[0])
    found = Sources(folder, _flashinfer_version(folder))
    if not found.gemm.is_file():
        raise CannotBuildError(
            f"FlashInfer's sources are missing: {found.gemm} is not there; name another --flashinfer"
        )
    return found


def _flashinfer_version(folder: Path) -> str:
    meta = folder / "_build_meta.py"
    match = re.search(r'__version__\s*=\s*"([^"]+)"', meta.read_text()) if meta.is_file() else None
    if match:
        return match[1]
    try:
        return importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def find_compiler() -> Compiler:
    """The nvcc of CUDA_HOME, of the path or of the usual folder. Raises CannotBuildError."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    named = [Path(home) / "bin" / "nvcc"] if home else []
    on_path = shutil.which("nvcc")
    tried = [*named, *([Path(on_path)] if on_path else []), Path("/usr/local/cuda/bin/nvcc")]
    nvcc = next((each for each in tried if each.is_file()), None)
    if nvcc is None:
        raise CannotBuildError("nvcc is missing: install the CUDA toolkit (12.8 or later) or set CUDA_HOME")
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    match = re.search(r"release (\d+)\.(\d+), V(\S+)", said)
    if match is None:
        raise CannotBuildError(f"{nvcc} does not say its version: set CUDA_HOME to a CUDA toolkit")
    if (int(match[1]), int(match[2])) < _LEAST_CUDA:
        raise CannotBuildError(f"{nvcc} is of CUDA {match[3]}: FP8 block scales need 12.8 or later; set CUDA_HOME")
    return Compiler(nvcc, match[3])


def cache_folder() -> Path:
    """Where libraries are kept: in $XDG_CACHE_HOME, else in ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "slo-bench" / "flashinfer"


def library(
    sources: Sources, compiler: Compiler, binding: str, nvrtc_header: str, *, tell: Callable[[str], None]
) -> Library:
    """The library, built where it is not there yet; tell: of each source that is done. Raises CannotBuildError."""
    key = _key(sources, compiler, binding, nvrtc_header)
    path = cache_folder() / key / _LIBRARY
    if path.is_file():
        return Library(path, key, is_new=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as made:
        work = Path(made)
        (work / "binding.cu").write_text(binding)
        (work / "nvrtc.h").write_text(nvrtc_header)
        _build(sources, compiler, work, tell)
        (work / _LIBRARY).replace(path)
    return Library(path, key, is_new=True)


def _build(sources: Sources, compiler: Compiler, work: Path, tell: Callable[[str], None]) -> None:
    parts = [sources.csrc / "nv_internal" / "cpp" / "common" / f"{name}.cpp" for name in _PARTS]
    units = [sources.gemm, work / "binding.cu", *parts]
    include = [f"-I{each}" for each in (work, *_include_folders(sources))]

    def compiled(unit: Path) -> Path:
        out = work / f"{unit.stem}.o"
        _run([str(compiler.nvcc), *_FLAGS, *include, "-c", str(unit), "-o", str(out)], unit.name)
        tell(unit.name)
        return out

    with ThreadPoolExecutor(len(units)) as pool:
        objects = [str(each) for each in pool.map(compiled, units)]
    _run([str(compiler.nvcc), "-shared", "-Xcompiler", "-fPIC", *objects, "-o", str(work / _LIBRARY)], "linking")


def _run(words: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    except subprocess.TimeoutExpired:
        raise CannotBuildError(f"{what} was not compiled in {_COMPILE_S} s: is the machine busy?") from None
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or [f"exit {done.returncode}"]
        raise CannotBuildError(f"{what} does not compile: {' '.join(lines[0].split())[:300]}; the log has the rest")


def _include_folders(sources: Sources) -> list[Path]:
    """As FlashInfer's own build has them, then cuBLAS's headers out of NVIDIA's wheels, where a toolkit lacks them."""
    data, internal = sources.folder / "data", sources.csrc / "nv_internal"
    cutlass_kernels = internal / "tensorrt_llm" / "kernels" / "cutlass_kernels"
    own = [
        *(internal, internal / "include", internal / "tensorrt_llm" / "cutlass_extensions" / "include"),
        *(cutlass_kernels / "include", cutlass_kernels),
        *(data / "cutlass" / "include", data / "cutlass" / "tools" / "util" / "include", data / "include"),
        *(data / "cccl" / "cub", data / "cccl" / "libcudacxx" / "include", data / "cccl" / "thrust"),
    ]
    roots = [Path(place) / "nvidia" for place in sys.path if place]
    wheels = [header.parent for root in roots for header in sorted(root.glob("*/include/cublasLt.h"))]
    return [each for each in own if each.is_dir()] + wheels[:1]


def _key(sources: Sources, compiler: Compiler, binding: str, nvrtc_header: str) -> str:
    """Of FlashInfer's sources, ours, the compiler and its flags."""
    digest = hashlib.sha256()
    for text in (sources.version, compiler.version, binding, nvrtc_header, *_FLAGS):
        digest.update(f"{len(text)}:{text}".encode())
    for path in _hashed(sources):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(sources.folder)}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()[:20]


def _hashed(sources: Sources) -> Iterator[Path]:
    """What can change the kernels: the sources named here, their headers, and CUTLASS's version."""
    internal = sources.csrc / "nv_internal"
    folders = [
        sources.gemm.parent,
        sources.jit_headers / "deep_gemm",
        internal / "include",
        internal / "cpp" / "common",
    ]
    for folder in folders:
        yield from (each for each in sorted(folder.rglob("*")) if each.is_file())
    version = sources.folder / "data" / "cutlass" / "include" / "cutlass" / "version.h"
    if version.is_file():
        yield version
