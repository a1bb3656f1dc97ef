"""Writes what `reports.run_directory` describes, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gates.capacity import rate_text
from reports.metrics import write_metrics
from reports.requests import write_requests
from reports.run_directory import Document, EngineDocument, RunDocument, SweepDocument, to_json
from slo_bench.hosts import EngineFacts
from slo_bench.scrape import Scraper
from traffic.errors import UsageError
from traffic.probe import ProbeFacts


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


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


class RunStore:
    """The directory of one run. Nothing is made before the first document."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._probes = 0

    def check_unused(self) -> None:
        """Raise UsageError when the directory is taken or can never be made.

        A folder that holds only the log of an engine that never got ready is not taken: nothing was measured there.
        """
        if self.directory.exists() and [entry.name for entry in self.directory.iterdir()] != ["engine.log"]:
            raise UsageError(f"{self.directory} exists already: choose another --label or remove it")
        ancestor = self.directory.parent
        while not ancestor.exists():
            ancestor = ancestor.parent
        if not ancestor.is_dir():
            raise UsageError(f"cannot write {self.directory}: {ancestor} is not a folder")
        if not os.access(ancestor, os.W_OK):
            raise UsageError(f"cannot write {self.directory}: no permission in {ancestor}")

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

    def requests(self, facts: ProbeFacts) -> str:
        """The rows of one probe; returns the file's name relative to the directory."""
        self._probes += 1
        rate = "closed" if facts.window.rate_rps is None else rate_text(facts.window.rate_rps)
        name = f"probes/{self._probes:02d}-{rate}.parquet"
        write_whole(self.directory / name, lambda temporary: write_requests(temporary, facts))
        return name
