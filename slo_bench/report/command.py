"""`slo-bench report`: what finished runs found, as a table, a note, a page or one file for programs; offline."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from reports.arms import BlockComparison
from reports.run_directory import read_document, to_json
from reports.summary import summary_of, summary_of_comparison
from reports.summary_document import SummaryDocument
from reports.summary_markdown import short_markdown
from reports.terminal import terminal
from slo_bench.report.baseline import against, lines
from slo_bench.report.options import ReportOptions
from slo_bench.report.runs import read_runs
from slo_bench.store import write_text
from traffic.errors import UsageError

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


async def report(options: ReportOptions) -> int:
    """`slo-bench report`: 0 when it is written; with --compare-to 1 for a proven regression and 5 for no answer."""
    found = read_runs(options.run_dir)
    summary = summary_of_comparison(found.document) if isinstance(found, BlockComparison) else summary_of(found)
    before = None if options.compare_to is None else read_document(options.compare_to, SummaryDocument)
    match options.form:
        case None if not options.github_summary:
            Console(highlight=False).print(terminal(summary, is_verbose=options.verbose))
        case "json":
            _write(options.output, to_json(summary))
        case "html" | "markdown":
            from slo_bench.report.pages import write_page  # noqa: PLC0415 - it brings matplotlib, a table need not wait

            write_page(found, summary, options)
    answer = None
    if before is not None and options.fail_on_regression is not None:
        answer = against(before, summary, bound_share=options.fail_on_regression)
    verdict = [] if answer is None else list(lines(answer))
    sys.stderr.write("".join(f"{line}\n" for line in verdict))
    if options.github_summary:
        _to_github(short_markdown(summary, verdict), os.environ)
    return 0 if answer is None else answer.exit_code


def _write(output: Path | None, text: str) -> None:
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text)


def _to_github(text: str, env: Mapping[str, str]) -> None:
    """Append to the file that GitHub Actions names; print where there is none."""
    name = env.get(STEP_SUMMARY)
    if not name:
        sys.stdout.write(text)
        return
    try:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"${STEP_SUMMARY} {name} cannot be written: {error.strerror or error}") from error
