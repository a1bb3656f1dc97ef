"""The lab note of an experiment: one page of Markdown from its documents, which anybody can check against them.

It puts parts together: `telling` chooses what is said, `sections` say it, `numbers` rounds, `figures` draw. It measures
nothing and computes nothing itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from gates.effect import Effect, EffectMetric
from reports.arms import Experiment, read_experiment
from reports.evidence import comparison_of, struck_because
from reports.figure_style import figure_bytes
from reports.figures import effects_figure, rates_figure
from reports.figures_spent import kernels_figure, power_figure
from reports.page import Page
from reports.sections.anchor import anchor, truth
from reports.sections.environment import cost, environment, power
from reports.sections.head import head
from reports.sections.kernels import kernels
from reports.sections.meaning import meaning
from reports.sections.method import blind_spots, method
from reports.sections.sources import raw_files, reproduce, windows
from reports.sections.why import why
from reports.telling import tell, timed_kernels
from traffic.errors import UsageError

NOTE_NAME = "note.md"
FIGURES_NAME = "figures"

_SECTIONS = (
    *(head, method, kernels, anchor, truth, blind_spots, why, meaning),
    *(windows, environment, power, cost, reproduce, raw_files),
)


def note(source: Path | Experiment, *, output: Path | None = None, figures_dir: Path | None = None) -> str:
    """The note as text. source: an experiment, or its directory.

    Links are relative to `output`, by default note.md in the experiment's directory.

    Raises UsageError when a document is missing or unreadable, or the arms do not belong together.
    """
    return _text(_page(source, output, figures_dir))


def write_note(source: Path | Experiment, output: Path | None = None, figures_dir: Path | None = None) -> Path:
    """Write the note and its figures (SVG and PNG), each whole or not at all; returns the note's path.

    Raises UsageError as `note` does, and when a file cannot be written.
    """
    page = _page(source, output, figures_dir)
    text = _text(page)
    for stem, figure in _figures(page):
        _write_whole(stem.with_name(f"{stem.name}.svg"), figure_bytes(figure, "svg"))
        _write_whole(stem.with_name(f"{stem.name}.png"), figure_bytes(figure, "png"))
    _write_whole(page.output, text.encode())
    return page.output


def _page(source: Path | Experiment, output: Path | None, figures_dir: Path | None) -> Page:
    experiment = source if isinstance(source, Experiment) else read_experiment(source)
    page = output or experiment.directory / NOTE_NAME
    return Page(experiment, tell(experiment), page, figures_dir or page.parent / FIGURES_NAME)


def _text(page: Page) -> str:
    parts = (part for section in _SECTIONS for part in section(page))
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(page: Page) -> Iterator[tuple[Path, Figure]]:
    """Each figure of the page with the path that it is written to, without its suffix."""
    experiment = page.experiment
    yield page.rates, rates_figure(experiment.arms)
    if page.effects is not None:
        drift = experiment.drift(EffectMetric.TPOT_MEAN)
        yield page.effects, effects_figure(dict(_effects(experiment)), drift, mark=experiment.mark)
    if page.kernels is not None:
        timed = {arm.label: kernels for arm, kernels in timed_kernels(experiment)}
        yield page.kernels, kernels_figure(timed, mark=experiment.mark)
    if page.power is not None:
        yield page.power, power_figure(experiment.arms)


def _effects(experiment: Experiment) -> Iterator[tuple[str, Effect]]:
    """Each compared arm's effect on mean TPOT, and the same by blocks in turn where that was measured."""
    metric = EffectMetric.TPOT_MEAN
    for arm in experiment.compared:
        name = arm.label if struck_because(experiment, arm) is None else f"{arm.label} (no result)"
        yield name, experiment.effect(arm, metric)
        if (document := comparison_of(experiment, arm)) is not None:
            found = document.primary
            yield f"{name}, blocks in turn", Effect(metric, found.share, found.interval, found.n_pairs, 0)


def _write_whole(path: Path, content: bytes) -> None:
    """Under a temporary name, then renamed: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
