"""From run directories to what a report is about: one experiment, or one comparison by interleaved blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from reports.arms import Arm, BlockComparison, Experiment, read_arm, read_experiment
from reports.effect_document import EffectDocument
from reports.passport import differences
from reports.run_directory import ExperimentDocument, RunDocument, read_document
from reports.summary import load_of
from reports.tuning_document import read_tuning
from traffic.errors import UsageError

_OF_ONE_RUN = frozenset(("label", "command", "runs_dir", "dry_run", "yes", "resume", "max_minutes", "text_salt"))
"""Options that do not change what is measured."""


Found = Experiment | BlockComparison


def read_runs(directories: Sequence[Path]) -> Found:
    """What the directories hold: an experiment, a comparison, or sweeps, which are arms of one comparison.

    Searches for MoE kernels may stand beside sweeps; a note tells of them.

    Raises UsageError, in one line, for a folder that is no run directory, a document that cannot be read, and runs that
    do not belong together.
    """
    if len(directories) == 1:
        return _single(directories[0])
    places = [each.resolve() for each in directories]
    for directory, place in zip(directories, places, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"{directory} is given twice: a run is no second arm beside itself")
    kinds = {directory: _kind(directory) for directory in directories}
    for directory, kind in kinds.items():
        if kind not in ("sweep", "tune"):
            raise UsageError(f"{directory} is of the kind {kind}: only sweeps are put together, give it alone")
    sweeps, searches = ([each for each, kind in kinds.items() if kind == wanted] for wanted in ("sweep", "tune"))
    if not sweeps:
        raise UsageError(
            f"{searches[0]} and the others are searches: give them beside the sweeps that used their files"
        )
    return replace(_together([_arm(each) for each in sweeps]), tunings=tuple(map(read_tuning, searches)))


def _single(directory: Path) -> Found:
    match _kind(directory):
        case "experiment":
            return read_experiment(directory)
        case "sweep":
            return _together([_arm(directory)])
        case "tune":
            raise UsageError(f"{directory} is a search: give it beside the sweeps that used its file")
        case _:
            return _compared(directory)


def _kind(directory: Path) -> str:
    """experiment, sweep, tune or compare. Raises UsageError for any other folder."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is no folder" if directory.exists() else f"{directory} does not exist")
    if (directory / "experiment.json").exists():
        return "experiment"
    if (directory / "effect.json").exists():
        return "compare"
    if not (directory / "run.json").exists():
        raise UsageError(
            f"{directory} is no run directory: it has no run.json, experiment.json or effect.json; "
            "give the folder that a run named at its end"
        )
    return read_document(directory / "run.json", RunDocument).kind


def _compared(directory: Path) -> BlockComparison:
    paths = [directory / "effect.json"] if (directory / "effect.json").exists() else []
    paths = paths or sorted((directory / "compare").glob("*/effect.json"))
    if not paths:
        raise UsageError(f"{directory} is a comparison that ended before its first pair: it has no effect.json")
    return BlockComparison(paths[0].parent, read_document(paths[0], EffectDocument))


def _arm(directory: Path) -> Arm:
    run = read_document(directory / "run.json", RunDocument)
    if not (directory / "sweep.json").exists():
        reason = f": {run.reason}" if run.reason else ""
        raise UsageError(f"{directory} holds no window, its run is {run.status}{reason}")
    return read_arm(directory, run.label)


def _together(arms: Sequence[Arm]) -> Experiment:
    """Sweeps as arms, the first as baseline. The last one is the drift arm where it has the first one's settings."""
    for arm in arms[1:]:
        _check_partners(arms[0], arm)
    named = [replace(arm, label=label) for arm, label in zip(arms, _labels(arms), strict=True)]
    is_repeated = len(named) > 1 and _repeats(named[0], named[-1])
    document = ExperimentDocument(
        schema_version=1,
        label=named[0].label if len(named) == 1 else f"{named[0].label}-and-{len(named) - 1}-more",
        title=named[0].label if len(named) == 1 else ", ".join(arm.label for arm in named),
        seed=arms[0].run.seed,
        engine=arms[0].run.engine,
        arms=[arm.label for arm in named],
        baseline=named[0].label,
        drift_arm=named[-1].label if is_repeated else None,
        anchor_rps=named[0].sweep.capacity_rps,
        started_utc=min(arm.run.started_utc for arm in named),
        ended_utc=max((arm.run.ended_utc for arm in named if arm.run.ended_utc is not None), default=None),
    )
    shared = Path(os.path.commonpath([arm.directory.resolve() for arm in named]))
    return Experiment(shared, document, tuple(named), None)


def _check_partners(first: Arm, other: Arm) -> None:
    """Raise UsageError where no window of one has a partner in the other: what was sent was not the same."""
    sides = [{"engine": arm.run.engine, "seed": arm.run.seed, **load_of(arm.run.config)} for arm in (first, other)]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        one, two = (side.get(name) for side in sides)
        if one != two:
            raise UsageError(
                f"{other.directory} has the {name} {_shown(two)}, {first.directory} {_shown(one)}: no window has a "
                "partner, so they are no arms of one comparison"
            )


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)


def _labels(arms: Sequence[Arm]) -> Iterator[str]:
    """Each arm's label; where two have the same, the folder's name; where these are equal too, a number."""
    labels = [arm.label for arm in arms]
    names = [
        label if labels.count(label) == 1 else arm.directory.resolve().name
        for arm, label in zip(arms, labels, strict=True)
    ]
    for number, name in enumerate(names):
        yield name if names.count(name) == 1 else f"{name}-{number + 1}"


def _repeats(first: Arm, last: Arm) -> bool:
    """Whether the last sweep is the first one's configuration again: the same settings and, as it tells, server.

    Of a server that somebody else runs nobody knows what was changed in it; there the label must say so too: before,
    before-2.
    """
    if last.run.engine == "attached" and last.label != f"{first.label}-2":
        return False
    return _settings(first.run.config) == _settings(last.run.config) and not differences(first.engine, last.engine)


def _settings(config: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in _OF_ONE_RUN}
