"""Writes what `reports.run_directory` describes, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gates.capacity import rate_text
from reports.cost import COST_NAME, CostDocument
from reports.gates_document import GATES_NAME, GatesDocument
from reports.metrics import write_metrics
from reports.power_document import POWER_NAME, SAMPLES_NAME, write_samples
from reports.requests import write_requests
from reports.run_directory import Document, EngineDocument, RunDocument, SweepDocument, to_json
from reports.text_document import TEXT_NAME, TextDocument
from slo_bench.hosts import EngineFacts
from slo_bench.lock import LOCK_NAME, check_can_be_made
from slo_bench.power.measuring import Power
from slo_bench.scrape import Scraper
from traffic.errors import UsageError
from traffic.probe import ProbeFacts

OF_ONE_START = ("engine.json", "engine.log", "metrics.parquet", "power.json", "power.parquet")
"""Files that tell of one server start, not of the whole run."""


def free_name(parent: Path, stem: str) -> str:
    """`stem-N` with the first N that no entry of the folder has."""
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return f"{stem}-{number}"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write under a temporary name, make it durable, then rename: a reader never sees half a file.

    Raises UsageError when the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # the folder itself may be what is missing
            temporary.unlink()
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _is_partial(path: Path) -> bool:
    """Whether it is what `write_whole` leaves when the process ends while it writes."""
    return path.name.startswith(".") and path.name.endswith(".partial")


def remove_partials(directory: Path) -> None:
    """Remove the files whose writing broke off."""
    for partial in directory.rglob(".*.partial"):
        partial.unlink()


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


class RunStore:
    """The directory of one run. Nothing is made before the first document."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._probes = 0

    @property
    def has_begun(self) -> bool:
        """Whether it holds a run: run.json is written first."""
        return (self.directory / "run.json").exists()

    def is_unused(self) -> bool:
        """Whether nothing was measured here.

        There is no folder, or in it no more than logs of engines that never got ready, half-written files and a lock.
        """
        if not self.directory.is_dir():
            return not self.directory.exists()
        files = (each for each in self.directory.rglob("*") if not each.is_dir())
        return all(each.name in ("engine.log", LOCK_NAME) or _is_partial(each) for each in files)

    def check_unused(self) -> None:
        """Raise UsageError when the directory is taken or can never be made."""
        if not self.is_unused():
            raise UsageError(f"{self.directory} exists already: choose another --label or remove it")
        check_can_be_made(self.directory)

    def go_on(self, server_start: int) -> None:
        """Make room for another server start of the same run; may be repeated after a stop at any point of it.

        What the server start before left of itself moves to `starts/N`. Files whose writing broke off are removed.
        Windows are numbered on after the last file, also one that no row names: that window was measured, but not
        judged, when the run stopped, and it is not counted.
        """
        remove_partials(self.directory)
        kept = self.directory / "starts" / str(server_start - 1)
        for name in OF_ONE_START:
            if (self.directory / name).exists():
                kept.mkdir(parents=True, exist_ok=True)
                (self.directory / name).replace(kept / name)
        numbers = [each.name.partition("-")[0] for each in self.directory.glob("probes/*-*.parquet")]
        self._probes = max((int(number) for number in numbers if number.isdecimal()), default=0)

    def begin_again(self) -> None:
        """Forget the windows of a run that is run again from its start; their rows first, which name them."""
        (self.directory / "sweep.json").unlink(missing_ok=True)
        for each in self.directory.glob("probes/*"):
            each.unlink()

    def _write(self, name: str, document: Document) -> None:
        write_text(self.directory / name, to_json(document))

    def run(self, document: RunDocument) -> None:
        """run.json."""
        self._write("run.json", document)

    def sweep(self, document: SweepDocument) -> None:
        """sweep.json."""
        self._write("sweep.json", document)

    def engine(self, facts: EngineFacts) -> None:
        """engine.json."""
        self._write(
            "engine.json",
            EngineDocument(
                schema_version=1,
                kind=facts.kind,
                model=facts.model,
                max_model_len=facts.max_model_len,
                version=facts.version,
                takes_forced_length=facts.takes_forced_length,
                start=facts.start,
                details=dict(facts.details),
            ),
        )

    def metrics(self, scraper: Scraper) -> None:
        """metrics.parquet: what the server said of itself, each second."""
        samples, gaps = scraper.samples, scraper.gaps
        write_whole(self.directory / "metrics.parquet", lambda path: write_metrics(path, samples, gaps))

    def power(self, power: Power) -> None:
        """power.json, and power.parquet with every sample where there is any."""
        self._write(POWER_NAME, power.document())
        samples = power.samples
        if samples:
            write_whole(self.directory / SAMPLES_NAME, lambda path: write_samples(path, samples))

    def cost(self, document: CostDocument) -> None:
        """cost.json."""
        self._write(COST_NAME, document)

    def text(self, document: TextDocument) -> None:
        """text_gate.json."""
        self._write(TEXT_NAME, document)

    def gates(self, document: GatesDocument) -> None:
        """gates.json."""
        self._write(GATES_NAME, document)

    def requests(self, facts: ProbeFacts) -> str:
        """The rows of one probe; returns the file's name relative to the directory."""
        self._probes += 1
        rate = "closed" if facts.window.rate_rps is None else rate_text(facts.window.rate_rps)
        name = f"probes/{self._probes:02d}-{rate}.parquet"
        write_whole(self.directory / name, lambda temporary: write_requests(temporary, facts))
        return name
