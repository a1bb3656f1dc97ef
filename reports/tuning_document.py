"""tuning.json: what a search for MoE kernel configurations left in its run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from reports.kernels import KERNELS_NAME, KernelsDocument
from reports.run_directory import SCHEMA_VERSION, Document, RunDocument, read_document
from traffic.errors import UsageError

TUNING_NAME = "tuning.json"


class TuningDocument(Document):
    """file: vLLM's; paths are relative to the run directory. minutes: of the search, over all its starts.

    is_complete: everything was tried before the budget ended. checksums: of vLLM's file and of what is beside it.
    is_simulated: the times come from a model of the kernel; the file is for no server.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    label: str
    is_simulated: bool
    file: str
    journal: str
    minutes: float | None = Field(ge=0)
    is_complete: bool | None
    placed_in: str
    checksums: dict[str, str]


@dataclass(frozen=True, slots=True)
class Tuning:
    """A search's run directory and its documents."""

    directory: Path
    run: RunDocument
    document: TuningDocument
    kernels: KernelsDocument

    @property
    def label(self) -> str:
        """The name of its run."""
        return self.run.label


def read_tuning(directory: Path) -> Tuning:
    """Read one. Raises UsageError for a search that did not come to its end, and for what cannot be read."""
    run = read_document(directory / "run.json", RunDocument)
    if not (directory / TUNING_NAME).exists():
        reason = f": {run.reason}" if run.reason else ""
        raise UsageError(f"{directory} holds no finished search, its run is {run.status}{reason}")
    document = read_document(directory / TUNING_NAME, TuningDocument)
    return Tuning(directory, run, document, read_document(directory / KERNELS_NAME, KernelsDocument))
