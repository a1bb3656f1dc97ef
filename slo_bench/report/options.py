"""The options of `slo-bench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator

from slo_bench.compare.options import Share
from slo_bench.engine_options import option
from slo_bench.options import Options, StringList

_WHAT, _NOTE, _CI = "what is written", "the note", "for CI"

Format = Literal["markdown", "html", "json"]


def _paths(value: object) -> object:
    return value.split() if isinstance(value, str) else value


class ReportOptions(Options):
    """What is reported, in which form, and what it is held against."""

    run_dir: Annotated[list[Path], BeforeValidator(_paths)] = option(
        [],
        "a run directory: of a sweep, an experiment or a comparison; several sweeps are arms of one comparison, the "
        "first is the baseline, and searches of `slo-bench run` may stand beside them",
        group=_WHAT,
        metavar="RUN_DIR...",
        is_positional=True,
    )
    output: Path | None = option(
        None, "write to this file (default: a table on the terminal; JSON on stdout)", group=_WHAT, metavar="FILE"
    )
    format: Format | None = option(
        None,
        "markdown: a note and its figures; html: one page; json: summary.json (default: by FILE's ending)",
        group=_WHAT,
    )
    verbose: bool = option(default=False, description="on the terminal, every table below the screenful", group=_WHAT)
    remarks: Path | None = option(
        None,
        "Markdown of your own under a section of the note; kept when the note is made again",
        group=_NOTE,
        metavar="FILE",
    )
    number: int | None = option(None, "number of the note", group=_NOTE, metavar="N", ge=1)
    see_also: StringList = option([], "a link at the note's end, repeatable", group=_NOTE, metavar="URL")
    github_summary: bool = option(
        default=False, description="append a short Markdown to $GITHUB_STEP_SUMMARY, or print it", group=_CI
    )
    compare_to: Path | None = option(
        None, "summary.json of an earlier session: whether this one is slower", group=_CI, metavar="FILE"
    )
    fail_on_regression: Share = option(
        None, "with --compare-to: exit 1 when a regression beyond this is proven, like 2%", group=_CI, metavar="SHARE"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> ReportOptions:
        if not self.run_dir:
            raise ValueError("give a run directory: slo-bench report RUN_DIR")
        if (self.compare_to is None) != (self.fail_on_regression is None):
            raise ValueError("--compare-to and --fail-on-regression go together")
        if self.fail_on_regression is not None and not 0 <= self.fail_on_regression < 1:
            raise ValueError("--fail-on-regression is a share of 0 to 1, like 2%")
        if self.verbose and self.form is not None:
            raise ValueError("--verbose is for the terminal: a note, a page and JSON have everything anyway")
        if self.form not in {"markdown", "html"} and self._of_the_note():
            raise ValueError(f"{', '.join(self._of_the_note())}: only a note or a page has them, give --output FILE.md")
        return self

    @property
    def form(self) -> Format | None:
        """The form that was asked for, or that the file's ending names; None for the terminal."""
        if self.format is not None or self.output is None:
            return self.format
        endings: dict[str, Format] = {".html": "html", ".htm": "html", ".json": "json"}
        return endings.get(self.output.suffix.lower(), "markdown")

    def _of_the_note(self) -> list[str]:
        given = {"--remarks": self.remarks, "--number": self.number, "--see-also": self.see_also}
        return [name for name, value in given.items() if value]
