"""The lab note of an experiment: one page of Markdown from its documents, which anybody can check against them.

It arranges what the other modules say: `findings` the sentences, `tables` the tables, `figures` the figures, `numbers`
every rounding. It measures nothing and computes nothing itself.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gates.effect import CONFIDENCE, NOT_TOLD_APART, EffectMetric
from reports import numbers, tables
from reports.arms import Arm, Experiment, read_experiment
from reports.compare_words import sentence
from reports.effect_document import EffectDocument
from reports.figures import effects_figure, figure_bytes, rates_figure
from reports.findings import (
    capacity_lines,
    effect_lines,
    effect_text,
    fault_lines,
    headline,
    objective_text,
    warm_up_text,
)
from reports.markdown import bullets, code, code_block, details, escape, heading, image, link
from reports.run_directory import Json, read_document
from traffic.errors import UsageError

NOTE_NAME = "note.md"
FIGURES_NAME = "figures"


@dataclass(frozen=True, slots=True)
class _Page:
    """What a page is about and where it lies, so that its links hold."""

    experiment: Experiment
    output: Path
    figures_dir: Path

    @property
    def rates(self) -> Path:
        """The figure of all windows, without its suffix."""
        return self.figures_dir / f"{self.experiment.document.label}-rates"

    @property
    def effects(self) -> Path | None:
        """The figure of the effects, without its suffix; None where arms have nothing to be compared at."""
        experiment = self.experiment
        if experiment.document.anchor_rps is None or len(experiment.arms) == 1:
            return None
        return self.figures_dir / f"{experiment.document.label}-effects"

    def to(self, path: Path) -> str:
        """A path as it is reached from the page."""
        return Path(os.path.relpath(path, self.output.parent)).as_posix()

    def marked(self, text: str) -> str:
        """A heading or caption with the experiment's mark."""
        return f"{text} ({self.experiment.mark})" if self.experiment.mark else text


def note(experiment_dir: Path, *, output: Path | None = None, figures_dir: Path | None = None) -> str:
    """The note as text. Links are relative to `output`, by default note.md in the experiment's directory.

    Raises UsageError when a document is missing or unreadable, or the arms do not belong together.
    """
    return _text(_page(experiment_dir, output, figures_dir))


def write_note(experiment_dir: Path, output: Path | None = None, figures_dir: Path | None = None) -> Path:
    """Write the note and its figures (SVG and PNG), each whole or not at all; returns the note's path.

    Raises UsageError as `note` does, and when a file cannot be written.
    """
    page = _page(experiment_dir, output, figures_dir)
    text = _text(page)
    experiment = page.experiment
    figures = {page.rates: rates_figure(experiment.arms)}
    if page.effects is not None:
        metric = EffectMetric.TPOT_MEAN
        compared = {arm.label: experiment.effect(arm, metric) for arm in experiment.compared}
        figures[page.effects] = effects_figure(compared, experiment.drift(metric), mark=experiment.mark)
    for stem, figure in figures.items():
        _write_whole(stem.with_name(f"{stem.name}.svg"), figure_bytes(figure, "svg"))
        _write_whole(stem.with_name(f"{stem.name}.png"), figure_bytes(figure, "png"))
    _write_whole(page.output, text.encode())
    return page.output


def _page(experiment_dir: Path, output: Path | None, figures_dir: Path | None) -> _Page:
    page = output or experiment_dir / NOTE_NAME
    return _Page(read_experiment(experiment_dir), page, figures_dir or page.parent / FIGURES_NAME)


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


def _text(page: _Page) -> str:
    parts = (
        *_head(page),
        *_anchor(page),
        *_truth(page),
        *_method(page),
        *_blind_spots(page),
        *_windows(page),
        *_environment(page),
        *_sources(page),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(page: _Page) -> Iterator[str]:
    experiment, document = page.experiment, page.experiment.document
    mark = f"{experiment.mark}: " if experiment.mark else ""
    yield heading(f"{mark}{escape(document.title)}", 1)
    yield headline(experiment)
    yield heading(page.marked("Result"), 2)
    yield bullets(
        [
            *capacity_lines(experiment),
            *effect_lines(experiment),
            *_comparison_lines(page),
            *fault_lines(experiment),
        ]
    )
    yield _figure(
        page,
        page.rates,
        "TTFT and TPOT at the percentile that the SLO judges, a point per window, against the request rate",
    )
    yield "A window that ended early shows the percentile of the requests that were resolved by then."
    if page.effects is not None:
        yield _figure(page, page.effects, "effect of each arm on mean TPOT beside the drift between two equal arms")


def _comparison_lines(page: _Page) -> Iterator[str]:
    """What each comparison by interleaved blocks found, with the note that has its pairs."""
    for path in sorted((page.experiment.directory / "compare").glob("*/effect.json")):
        document = read_document(path, EffectDocument)
        between = f"{document.b.label} against {document.a.label}"
        note_path = page.to(path.with_name("effect.md"))
        yield f"{link(escape(between), note_path)}, blocks in turn: {escape(sentence(document))}"


def _figure(page: _Page, stem: Path, words: str) -> str:
    svg, png = (page.to(stem.with_name(f"{stem.name}.{form}")) for form in ("svg", "png"))
    return f"{image(page.marked(words), svg)}\n\n{page.marked('Figure')}: {words} ({link('PNG', png)})."


def _anchor(page: _Page) -> Iterator[str]:
    experiment = page.experiment
    if experiment.document.anchor_rps is None:
        return
    at = numbers.rate(experiment.document.anchor_rps)
    yield heading(page.marked(f"End to end at {at}"), 2)
    yield (
        f"{page.marked('Table')}: the mean over an arm's whole windows, lowest and highest in brackets. "
        "Where one window has no value, no mean is shown: leaving out the worst would flatter."
    )
    yield tables.end_to_end(experiment)
    if experiment.compared:
        base = code(experiment.baseline.label)
        yield f"{page.marked('Table')}: effects against {base} at {at}, the drift of the same measure beside each."
        yield tables.effects(experiment)


def _truth(page: _Page) -> Iterator[str]:
    experiment, truth = page.experiment, page.experiment.truth
    if truth is None:
        return
    yield heading(page.marked("Truth beside finding"), 2)
    yield (
        f"{page.marked('Table')}: what was hidden in each arm before the measurement, what the tool concluded without "
        "knowing it, and what a plain comparison claims: one cold run each, one after the other, means."
    )
    yield tables.truth_beside_finding(experiment)
    hidden, found = numbers.signed_share(truth.drift_share), effect_text(experiment.drift(EffectMetric.TPOT_MEAN))
    yield bullets(
        [
            f"Drift in mean TPOT between the equal arms, hidden: {hidden}; found: {found}.",
            f"Cold start: {escape(truth.cold_start)}",
        ]
    )


def _method(page: _Page) -> Iterator[str]:
    experiment = page.experiment
    slo = " and ".join(objective_text(each) for each in experiment.baseline.objectives)
    lengths = sorted({row.window_s for arm in experiment.arms for row in arm.sweep.probes})
    windows = ", ".join(numbers.seconds(length) for length in lengths) or numbers.NOT_MEASURED
    warm = "; ".join(f"{code(arm.label)} {warm_up_text(arm.sweep)}" for arm in experiment.arms)
    yield heading("Method", 2)
    yield bullets(
        [
            f"SLO: {slo}. {_PASSES}",
            _DEFINITIONS,
            f"Windows of {windows}; seed {numbers.count(experiment.document.seed)}. {_CAPACITY}",
            f"{_PAIRS} Interval: {numbers.confidence(CONFIDENCE)} by t over the pairs. {_BEYOND}",
            f"Warm-up: {warm}.",
        ]
    )


_PASSES = (
    "A window passes when each objective is broken by no more requests than its percentile allows; a failed, cut or "
    "unfinished request breaks all of them."
)
_DEFINITIONS = (
    "TTFT: first token minus the time at which the request was due. TPOT: last minus first token, divided by output "
    "tokens less one, per request. Open loop: requests go out when due, whatever the server does."
)
_CAPACITY = (
    "A rate passes when its first window and all its repeats pass. Capacity: the highest rate that passed below every "
    "failed one; resolution: first failed rate over it, less one."
)
_PAIRS = (
    "Pairs: whole windows with the same repeat, which share due times and lengths. Effect: mean log ratio over the "
    "pairs."
)
_BEYOND = (
    "An effect counts as beyond the drift only when its whole interval is larger in size than anything in the drift's "
    "interval, in either direction. Smallest visible: half the interval plus that reach of the drift."
)


def _blind_spots(page: _Page) -> Iterator[str]:
    yield heading("What this cannot see or tell apart", 2)
    yield bullets(
        [
            NOT_TOLD_APART,
            *(_ONE_DRIFT if page.experiment.drift_arm is not None else ()),
            *_BLIND_SPOTS,
            *(_OF_SIMULATION if any(arm.is_simulated for arm in page.experiment.arms) else ()),
            *(_OF_SMOKE if any(arm.is_smoke for arm in page.experiment.arms) else ()),
        ]
    )


_ONE_DRIFT = (
    "The drift comes from one pair of equal server starts. How far other pairs would lie apart is not known.",
)
_BLIND_SPOTS = (
    "Intervals hold the noise between windows of one server, not between starts. With few pairs they are wide.",
    "Repeats that agree prove no rate: requests over a limit come in episodes, so agreement can still be luck.",
    "Means are over finished requests. Percentiles of windows are averaged, not pooled over requests.",
    "The limiting objective says what broke, not why. Accuracy, power and money are not part of this note.",
)
_OF_SIMULATION = (
    "The engine is SIMULATED: arithmetic with seeded noise. Nothing here is a statement about a GPU or about vLLM.",
)
_OF_SMOKE = ("A smoke run checks that everything works; its windows are too short to measure anything.",)


def _windows(page: _Page) -> Iterator[str]:
    yield heading(page.marked("Every window"), 2)
    yield "In the order of measurement. Struck out: invalid, with the reason; no result, and used for nothing."
    for arm in page.experiment.arms:
        summary = f"{arm.label}: {numbers.plural(len(arm.sweep.probes), 'window')}"
        yield details(page.marked(summary), tables.windows(arm))


def _environment(page: _Page) -> Iterator[str]:
    experiment, arms = page.experiment, page.experiment.arms
    yield heading("Environment", 2)
    yield bullets([_engine_line(arm) for arm in arms])
    started, ended = experiment.document.started_utc, experiment.document.ended_utc
    yield f"Started {escape(started)}, {f'ended {escape(ended)}' if ended else 'not ended yet'}."
    differs = tables.differences(arms, _settings) if len(arms) > 1 else None
    if differs is not None:
        yield "Differences between the arms:"
        yield differs
    elif len(arms) > 1:
        yield "The recorded settings of all arms are the same."
    shared = tables.common(arms, _settings)
    if shared is not None:
        yield details("Settings that all arms share", shared)


def _settings(arm: Arm) -> Json:
    return {"config": arm.run.config, "environment": arm.run.environment, "engine": arm.engine.details}


def _engine_line(arm: Arm) -> str:
    engine = arm.engine
    kind = "SIMULATED engine" if arm.is_simulated else f"engine {engine.kind}"
    version = "version not known" if engine.version is None else f"version {escape(engine.version)}"
    length = numbers.count(engine.max_model_len)
    start = numbers.count(engine.start)
    return f"{code(arm.label)}: {kind}, {version}, model {escape(engine.model)}, context {length} tokens, start {start}"


def _sources(page: _Page) -> Iterator[str]:
    experiment = page.experiment
    commands = [text for arm in experiment.arms if (text := _command(arm.run.config.get("command"))) is not None]
    if commands:
        yield heading("Reproduce", 2)
        yield code_block("\n".join(dict.fromkeys(commands)), "sh")
    yield heading("Raw files", 2)
    lines = [link("experiment.json", page.to(experiment.directory / "experiment.json"))]
    if experiment.truth is not None:
        lines.append(link("truth.json", page.to(experiment.directory / "truth.json")))
    for arm in experiment.arms:
        files = [link(name, page.to(arm.directory / name)) for name in ("run.json", "sweep.json", "engine.json")]
        kept = sum(row.requests_file is not None for row in arm.sweep.probes)
        rows = f"a row per request of {numbers.plural(kept, 'window')}"
        if kept and (arm.directory / "probes").is_dir():
            files.append(f"{rows} in {link('probes', page.to(arm.directory / 'probes'))}")
        elif kept:
            files.append(f"{rows} is not kept here; the command above writes them again")
        lines.append(f"{code(arm.label)}: {', '.join(files)}")
    yield bullets(lines)


def _command(recorded: object) -> str | None:
    """The command as it was recorded: a line, or its words."""
    if isinstance(recorded, str) and recorded.strip():
        return recorded
    if isinstance(recorded, list) and recorded:
        return shlex.join(str(word) for word in recorded)
    return None
