"""Notes and pages of what was found: the Markdown with its figures beside it, or all of it in one HTML file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from reports.arms import BlockComparison, Experiment
from reports.compare import compare_note
from reports.html import html_page
from reports.html_slowest import slowest
from reports.note import note, write_note
from reports.summary_document import SummaryDocument
from slo_bench.report.options import ReportOptions
from slo_bench.report.own_words import OwnWords, own_words, with_own_words
from slo_bench.report.runs import Found
from slo_bench.store import write_text
from traffic.errors import UsageError


def write_page(found: Found, summary: SummaryDocument, options: ReportOptions) -> None:
    """The note in the form that was asked for.

    Raises UsageError without --output, and where a file cannot be read or written.
    """
    if options.output is None:
        raise UsageError(f"--format {options.form} needs --output FILE")
    if options.output.is_dir():
        raise UsageError(f"--output {options.output} is a folder: name a file")
    output, words = options.output.resolve(), own_words(options)
    if isinstance(found, BlockComparison):
        text = with_own_words(compare_note(found.document), words)
        if options.form == "html":
            text = html_page(text, title=summary.title, base=output.parent, remarks=words.remarks)
        write_text(output, text)
    elif options.form == "html":
        _html(found, output, words, title=summary.title)
    else:
        _markdown(found, output, words)


def _markdown(experiment: Experiment, output: Path, words: OwnWords) -> None:
    """The note and its figures. The note is replaced once and whole: no remarks of its author can get lost."""
    figures = output.parent / "figures"
    text = with_own_words(note(experiment, output=output, figures_dir=figures), words)
    with tempfile.TemporaryDirectory(prefix="slo-bench-") as scratch:
        write_note(experiment, Path(scratch) / "note.md", figures)
    write_text(output, text)


def _html(experiment: Experiment, output: Path, words: OwnWords, *, title: str) -> None:
    """One page: the note with its figures inside, and the slowest requests of failed windows."""
    with tempfile.TemporaryDirectory(prefix="slo-bench-") as scratch:
        figures = Path(scratch).resolve()
        write_note(experiment, figures / "note.md", figures)
        text = with_own_words(note(experiment, output=output, figures_dir=figures), words)
        slow = [window for arm in experiment.arms if (window := slowest(arm)) is not None]
        page = html_page(text, title=title, base=output.parent, mark=experiment.mark, slow=slow, remarks=words.remarks)
        write_text(output, page)
