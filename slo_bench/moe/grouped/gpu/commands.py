"""What the kernel process of the grouped GEMM can be asked: facts, build, compile, prepare, check, time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .building import CannotBuildError, Compiler, Sources, find_compiler, find_sources, library
from .measuring import Rank, check_rank, seen_kernels, time_rank
from .runner import Gemm, Stage

Tell = Callable[[int], None]

_HERE = Path(__file__).parent


class Device:
    """The card, what is built for it, and the rank that is measured. Each command needs those before it."""

    sources: Sources
    compiler: Compiler
    gemm: Gemm
    rank: Rank | None = None

    def facts(self, *, flashinfer: str | None) -> dict[str, Any]:
        """The card and the versions. Raises CannotBuildError for what is missing."""
        name, sms = hopper()
        self.sources = find_sources(None if flashinfer is None else Path(flashinfer))
        self.compiler = find_compiler()
        properties = torch.cuda.get_device_properties(0)
        versions = {"flashinfer": self.sources.version, "nvcc": self.compiler.version, "torch": torch.__version__}
        return {
            "device": name,
            "uuid": f"GPU-{str(properties.uuid).removeprefix('GPU-')}" if hasattr(properties, "uuid") else None,
            "sms": sms,
            "cores": len(os.sched_getaffinity(0)),
            "versions": versions,
        }

    def build(self, tell: Tell) -> dict[str, Any]:
        """The library, from the cache or built; loaded."""
        done = 0

        def told(_: str) -> None:
            nonlocal done
            done += 1
            tell(done)

        texts = [(_HERE / name).read_text() for name in ("binding.cu", "headers/nvrtc.h")]
        built = library(self.sources, self.compiler, texts[0], texts[1], tell=told)
        self.gemm = Gemm(built, self.sources, self.compiler, hopper()[1])
        return {"is_new": built.is_new, "key": built.key}

    def compile(self, *, stages: Sequence[Sequence[int]], estimates: Sequence[int], tell: Tell) -> dict[str, Any]:
        """Every kernel that the estimates lead to; the tiles, by stage, in the order of the estimates."""
        tiles = []
        for number, (n, k, groups) in enumerate(stages):
            stage = Stage(n, k, groups)
            for each, estimate in enumerate(estimates):
                self.gemm.compile(stage, estimate)
                tell(number * len(estimates) + each + 1)
            tiles.append([self.gemm.tile(stage, estimate) for estimate in estimates])
        return {"tiles": tiles}

    def prepare(self, **request: Any) -> dict[str, Any]:
        """Memory for a rank; that of the one before is given up first."""
        self.rank = None
        try:
            self.rank = Rank(self.gemm, **request)
        except torch.OutOfMemoryError:
            raise CannotBuildError("CUDA out of memory: free the GPU, or take a layer of fewer experts") from None
        return {}

    def check(self, *, cases: Sequence[Mapping[str, Any]], tell: Tell) -> dict[str, Any]:
        """The comparisons of each case, stage by stage; of the first, which kernels both estimates really launched."""
        rank = self.rank
        if rank is None:
            raise CannotBuildError("prepare comes first")
        answers = []
        for number, case in enumerate(cases):
            names = ("shipped", "corrected") if number == 0 else ()  # which kernel runs depends on the estimate alone
            seen = {
                name: seen_kernels(rank, tokens=case["tokens"], counts=case["counts"], estimate=case[name])
                for name in names
            }
            answers.append({"stages": check_rank(rank, **case), "seen": seen})
            tell(number + 1)
        return {"checked": answers}

    def time(self, *, tell: Tell, **request: Any) -> dict[str, Any]:
        """Samples of each case."""
        if self.rank is None:
            raise CannotBuildError("prepare comes first")
        return {"times_s": time_rank(self.rank, tell=tell, **request)}


def hopper() -> tuple[str, int]:
    """Name and SMs of the card. Raises CannotBuildError where it is no Hopper."""
    wanted = "FlashInfer's FP8 block-scale path needs a Hopper card (SM90)"
    if not torch.cuda.is_available():
        raise CannotBuildError(f"no CUDA GPU answers: {wanted}")
    card = torch.cuda.get_device_properties(0)
    if (card.major, card.minor) != (9, 0):
        raise CannotBuildError(f"{card.name} is SM{card.major}{card.minor}: {wanted}")
    return str(card.name), int(card.multi_processor_count)


def commands(refused: type[Exception]) -> Callable[[str, dict[str, Any], Tell], dict[str, Any]]:
    """What a name does. refused: what the conversation raises for a request that cannot be met."""
    device = Device()

    def run(name: str, request: dict[str, Any], tell: Tell) -> dict[str, Any]:
        try:
            match name:
                case "facts":
                    return device.facts(**request)
                case "build":
                    return device.build(tell)
                case "compile":
                    return device.compile(tell=tell, **request)
                case "prepare":
                    return device.prepare(**request)
                case "check":
                    return device.check(tell=tell, **request)
                case "time":
                    return device.time(tell=tell, **request)
        except CannotBuildError as error:
            raise refused(str(error)) from None
        raise refused(f"there is no command {name!r}")

    return run
