"""What an earlier part of a run left behind: its documents, and its windows judged again from their own files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gates.capacity import CapacityVerdict
from gates.slo import Objective
from gates.verdict import ProbeVerdict, judge_probe
from reports.requests import read_requests
from reports.run_directory import ProbeRow, RunDocument, SweepDocument, read_document
from traffic.errors import UsageError

LATER_STARTS = 1000
"""Servers of a resumed arm are counted from multiples of this, so that no other arm's server is sent their text."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run that goes on.

    sweep: what was written after its last window, None before the first one. verdicts: of its rows in their order;
    None for an invalid window, which is no result.
    """

    run: RunDocument
    sweep: SweepDocument | None = None
    verdicts: tuple[ProbeVerdict | None, ...] = ()

    @property
    def server_start(self) -> int:
        """The number of the server start that comes next; the first part of a run has 0."""
        return len(self.run.resumed_utc) + 1

    @property
    def answer(self) -> SweepDocument | None:
        """The answer of a run that came to its end; None where it did not, or where only its time was up."""
        if self.run.status != "done" or self.sweep is None or self.sweep.verdict is CapacityVerdict.UNFINISHED:
            return None
        return self.sweep

    def windows(self) -> Iterator[tuple[ProbeRow, ProbeVerdict]]:
        """The valid windows in the order in which they were measured."""
        rows = [] if self.sweep is None else self.sweep.probes
        for row, verdict in zip(rows, self.verdicts, strict=True):
            if verdict is not None:
                yield row, verdict


def read_earlier(directory: Path, slo: Sequence[Objective]) -> Earlier:
    """The part of a sweep that a directory holds.

    Raises UsageError for documents that cannot be read, and for a row that does not follow from its file.
    """
    run = read_document(directory / "run.json", RunDocument)
    if not (directory / "sweep.json").exists():
        return Earlier(run)
    sweep = read_document(directory / "sweep.json", SweepDocument)
    verdicts = tuple(_judged_again(directory, row, slo) if row.is_valid else None for row in sweep.probes)
    return Earlier(run, sweep, verdicts)


def _judged_again(directory: Path, row: ProbeRow, slo: Sequence[Objective]) -> ProbeVerdict:
    """The verdict of a valid window.

    That it is valid is taken from its row: the server's own counts, which have a say in it, may have gone with the
    process.
    """
    if row.requests_file is None:
        raise UsageError(f"{directory / 'sweep.json'} names no file for its window at {row.rate_rps} req/s")
    verdict = judge_probe(read_requests(directory / row.requests_file), slo)
    counted = [(each.n, each.over) for each in verdict.results]
    if counted != [(each.n, each.over) for each in row.objectives]:
        raise UsageError(
            f"{directory / row.requests_file} and its row in sweep.json disagree: this run cannot go on, measure again "
            "under another --label"
        )
    return replace(verdict, outcome=row.outcome, invalid_reasons=())
