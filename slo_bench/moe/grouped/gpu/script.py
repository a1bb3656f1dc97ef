"""The body of the script that `--export-script` writes: the main comparison alone, for a bug report."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from .building import CannotBuildError, find_compiler, find_sources, library
from .measuring import Rank, check_rank, time_rank
from .runner import Gemm, swap_below

_QUERY = "name,driver_version,clocks.sm,temperature.gpu,clocks_event_reasons.active"
_USUAL_SMS = 132


def run_script(settings: Mapping[str, Any], binding: str, nvrtc_header: str, words: Sequence[str]) -> int:
    """0; 1 where the results are no pass; 2 where something is missing."""
    parser = argparse.ArgumentParser(description=settings["title"])
    parser.add_argument("--dry-run", action="store_true", help="say what would run; needs no GPU and no torch")
    parser.add_argument("--flashinfer", type=Path, help="folder of the package (default: as Python imports it)")
    parser.add_argument("--output", type=Path, help="where all samples go, as JSON")
    options = parser.parse_args(words)
    _say_plan(settings)
    if options.dry_run:
        _say("dry run: nothing was built or timed")
        return 0
    try:
        found = _measured(settings, _opened(options.flashinfer, binding, nvrtc_header))
    except CannotBuildError as error:
        sys.stderr.write(f"cannot run: {error}\n")
        return 2
    if options.output is not None:
        options.output.write_text(json.dumps({"settings": settings, "found": found}, indent=1) + "\n")
    return _say_found(settings, found)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _say_plan(settings: Mapping[str, Any]) -> None:
    _say(settings["title"])
    least = swap_below(_USUAL_SMS)
    for name in ("shipped", "corrected"):
        branch = "swapAB" if settings[name] < least else "normal"
        _say(f"{name} estimate: {settings[name]} rows per expert, {branch} branch on a card of {_USUAL_SMS} SMs")
    for routing, ranks in settings["ranks"].items():
        rows = ", ".join(f"{sum(counts)}{'' if sum(counts) else ' (idle)'}" for counts in ranks)
        _say(f"{routing}: rows of the ranks {rows}; the fullest expert has {max(map(max, ranks))}")
    _say(
        f"{settings['warm_ups']} warm-ups, {settings['samples']} samples; communication between ranks is not part of it"
    )


def _opened(flashinfer: Path | None, binding: str, nvrtc_header: str) -> Gemm:
    if torch is None or not torch.cuda.is_available():
        raise CannotBuildError("no torch with a CUDA GPU: a Hopper card (SM90) is needed, or --dry-run")
    card = torch.cuda.get_device_properties(0)
    if (card.major, card.minor) != (9, 0):
        raise CannotBuildError(
            f"{card.name} is SM{card.major}{card.minor}: a Hopper card (SM90) is needed, or --dry-run"
        )
    sources, compiler = find_sources(flashinfer), find_compiler()
    _say(f"FlashInfer {sources.version}, nvcc {compiler.version}, torch {torch.__version__}; building takes minutes")
    built = library(sources, compiler, binding, nvrtc_header, tell=_say)
    return Gemm(built, sources, compiler, card.multi_processor_count)


def _measured(settings: Mapping[str, Any], gemm: Gemm) -> dict[str, Any]:
    tokens, top_k = settings["tokens"], settings["top_k"]
    layer = {name: settings[name] for name in ("hidden", "intermediate", "groups", "top_k", "seed")}
    rank = Rank(gemm, most_rows=tokens * top_k, **layer)
    both = {name: settings[name] for name in ("shipped", "corrected")}
    found: dict[str, Any] = {"before": _card(), "checks": {}, "times_s": {}}
    for routing, ranks in settings["ranks"].items():
        found["checks"][routing] = [
            check_rank(rank, tokens=tokens, counts=counts, **both) for counts in ranks if sum(counts)
        ]
        cases = [
            {"tokens": tokens, "counts": counts, "estimate": estimate} for counts in ranks for estimate in both.values()
        ]
        found["times_s"][routing] = time_rank(
            rank,
            cases=cases,
            warm_ups=settings["warm_ups"],
            samples=settings["samples"],
            seed=settings["seed"],
            tell=lambda _: None,
        )
    found["after"] = _card()
    return found


def _card() -> str:
    """Clock, temperature and what holds the clock down, as the driver says it; empty without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    words = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False).stdout.strip()


def _say_found(settings: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    for when in ("before", "after"):
        _say(f"card {when}: {found[when] or 'nvidia-smi is missing'}")
    for routing, times_s in found["times_s"].items():
        for place, name in enumerate(("shipped", "corrected")):
            medians = [[median(stage) * 1e6 for stage in case] for case in times_s[place::2]]
            slowest = max(medians, key=sum)
            _say(
                f"{routing}, {name}: FC1 {slowest[0]:.1f} us, FC2 {slowest[1]:.1f} us, both {sum(slowest):.1f} us "
                f"(rank {medians.index(slowest)} is the slowest of {len(medians)})"
            )
    worst = {
        name: [
            stage[name]["worst_row_error"] for checks in found["checks"].values() for check in checks for stage in check
        ]
        for name in ("shipped_reference", "corrected_reference", "corrected_shipped")
    }
    missed = set()
    for name, errors in worst.items():
        known = [each for each in errors if each is not None]
        largest = max(known) if len(known) == len(errors) else None
        if largest is None or largest > settings["most_apart"]:
            missed.add(name)
        _say(f"{name.replace('_', ' against ')}: worst row {'not finite' if largest is None else f'{largest:.3g}'}")
    if {"shipped_reference", "corrected_reference"} <= missed:
        _say("reference unexplained: both estimates miss it, which is no pass, however equal they are")
    elif missed:
        _say(f"no pass: {', '.join(sorted(missed))}")
    else:
        _say("all three comparisons pass")
    return 1 if missed else 0
