"""What a search leaves in its folder: vLLM's file, and beside it what slo-bench knows of that file.

DIR/E=128,N=768,....json              as vLLM reads it; DIR is what VLLM_TUNED_CONFIG_FOLDER names
DIR/slo-bench/E=128,N=768,.../        vLLM reads no folder inside the folder
                   tuned.json         who made the file, of what, whether SIMULATED; written before the file
                   kernels.json       times before and after
                   tuning.jsonl       everything that was timed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from pydantic import Field

from reports.kernels import KERNELS_NAME, KernelRow, KernelsDocument
from reports.run_directory import SCHEMA_VERSION, Document, read_document, to_json
from slo_bench.moe.choice import Judged, middle_of
from slo_bench.moe.config_files import ConfigFile, write_config
from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tune import Tuned
from slo_bench.moe.tune_choice import SizeChoice
from slo_bench.store import write_text
from traffic.errors import UsageError

SIDE_FOLDER, SIDE_NAME, JOURNAL_NAME = ".slo-bench", "tuned.json", "tuning.jsonl"

Interval = tuple[float, float]


class TunedTimes(Document):
    """One routing: medians in seconds per call, before (vLLM's default) and after, and their ratio less 1.

    Intervals are of 95 %; null where there is none. The change is of paired rounds; null where the default stays.
    """

    before_s: float
    before_interval_s: Interval | None
    after_s: float
    after_interval_s: Interval | None
    change_share: float | None
    change_interval_share: Interval | None


class TunedSize(Document):
    """One batch size. default_rank: of the default among the `tried`, 1 is the fastest; finalists: timed at the end."""

    tokens: int
    default: dict[str, int]
    chosen: dict[str, int]
    is_default: bool
    default_rank: int | None
    tried: int
    finalists: int
    routings: dict[str, TunedTimes]


class TunedDocument(Document):
    """tuned.json. about: shape, device, versions, what was searched. beyond_s: what it took beyond its budget.

    left_out: configurations that were not tried, since others with their tile are far too slow everywhere.
    is_simulated: the times come from a model of the kernel; the file has no business on a server.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    file: str
    is_simulated: bool
    is_finished: bool
    about: dict[str, str]
    command: str
    is_complete: bool | None = None
    tuning_s: float | None = None
    beyond_s: float | None = None
    left_out: int | None = None
    sizes: list[TunedSize] = Field(default_factory=list)


class TunedFolder:
    """The folder of one search for one file."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    @property
    def file(self) -> Path:
        """VLLM's file."""
        return self.folder / self.name

    @property
    def side(self) -> Path:
        """Where slo-bench keeps what belongs to it."""
        return self.folder / SIDE_FOLDER / self.name.removesuffix(".json")

    @property
    def journal(self) -> Path:
        """Of the search."""
        return self.side / JOURNAL_NAME

    def check(self, *, is_simulated: bool, is_resumed: bool) -> None:
        """Raise UsageError where the folder cannot take this file, before anything is measured."""
        if self.journal.exists() and not is_resumed:
            raise UsageError(f"{self.side} holds a search already: --resume goes on with it, or give another --output")
        document = self._told(self.name)
        if self.file.exists() and document is None:
            raise UsageError(
                f"{self.file} is there and slo-bench has not made it: give another --output or move it away"
            )
        self.check_kind(is_simulated=is_simulated)

    def check_kind(self, *, is_simulated: bool) -> None:
        """Raise UsageError where the folder holds files of the other kind, SIMULATED or of a GPU."""
        if is_simulated:
            real = [path.name for path in self._files() if not self._is_simulated(path.name)]
            if real:
                raise UsageError(f"{self.folder} holds {real[0]}, which is of a GPU: a SIMULATED file goes elsewhere")
        elif any(self._is_simulated(path.name) for path in self._files()):
            raise UsageError(f"{self.folder} holds SIMULATED files, which no server may read: give another --output")

    def begin(self, about: Mapping[str, str], command: str, *, is_simulated: bool) -> None:
        """Say what is going to be here."""
        self._tell(
            TunedDocument(
                file=self.name, is_simulated=is_simulated, is_finished=False, about=dict(about), command=command
            )
        )

    def finish(self, tuned: Tuned, about: Mapping[str, str], command: str) -> None:
        """Write everything, vLLM's file last."""
        sizes = [tuned_size(choice) for choice in tuned.choices.values()]
        self._tell(
            TunedDocument(
                file=self.name,
                is_simulated=tuned.facts.is_simulated,
                is_finished=True,
                about=dict(about),
                command=command,
                is_complete=tuned.is_complete,
                tuning_s=tuned.spent_s,
                beyond_s=tuned.beyond_s,
                left_out=tuned.left_out,
                sizes=sizes,
            )
        )
        rows = [
            KernelRow(tokens=size.tokens, routing=routing, before_s=times.before_s, after_s=times.after_s)
            for size in sizes
            for routing, times in size.routings.items()
        ]
        kernels = KernelsDocument(rows=rows, tuning_s=tuned.spent_s, is_simulated=tuned.facts.is_simulated)
        write_text(self.side / KERNELS_NAME, to_json(kernels))
        entries = {size: choice.config.entry() for size, choice in tuned.choices.items()}
        write_config(self.file, ConfigFile(entries, tuned.facts.versions.get("triton")))

    @property
    def is_simulated(self) -> bool:
        """Whether the file is known to be of a model of the kernel."""
        return self._is_simulated(self.name)

    def _tell(self, document: TunedDocument) -> None:
        write_text(self.side / SIDE_NAME, to_json(document))

    def _told(self, name: str) -> TunedDocument | None:
        path = self.folder / SIDE_FOLDER / name.removesuffix(".json") / SIDE_NAME
        return read_document(path, TunedDocument) if path.exists() else None

    def _is_simulated(self, name: str) -> bool:
        document = self._told(name)
        return document is not None and document.is_simulated

    def _files(self) -> Sequence[Path]:
        return sorted(self.folder.glob("*.json"))


def finished(folder: Path) -> TunedDocument | None:
    """What a folder says of the search that came to its end there; None where none did."""
    for path in sorted(folder.glob(f"{SIDE_FOLDER}/*/{SIDE_NAME}")):
        document = read_document(path, TunedDocument)
        if document.is_finished:
            return document
    return None


def searched_sizes(file: Path) -> frozenset[int]:
    """Batch sizes of a search that saw its whole space and left this file; empty where none did.

    Raises UsageError for a broken side document.
    """
    path = TunedFolder(file.parent, file.name).side / SIDE_NAME
    document = read_document(path, TunedDocument) if path.is_file() else None
    return frozenset(size.tokens for size in document.sizes) if document and document.is_complete else frozenset()


def tuned_size(choice: SizeChoice) -> TunedSize:
    """A choice as tuned.json has it."""
    return TunedSize(
        tokens=choice.tokens,
        default=choice.before.config.entry(),
        chosen=choice.config.entry(),
        is_default=choice.judged is None,
        default_rank=choice.default_rank,
        tried=choice.tried,
        finalists=choice.finalists,
        routings={
            routing: _times(before, choice.after.times_s[routing], choice.judged, routing)
            for routing, before in choice.before.times_s.items()
        },
    )


def shipped_entry(config: ConfigFile, tokens: int) -> KernelConfig | None:
    """What vLLM runs for so many tokens with this file; None for an entry that has other options than we know."""
    entry = config.nearest(tokens)
    known = KernelConfig(*(entry.get(name, 0) for name in KernelConfig(0, 0, 0, 0, 0, 0).entry()))
    return known if entry == known.entry() else None


def _times(before: Sequence[float], after: Sequence[float], judged: Judged | None, routing: str) -> TunedTimes:
    found = None if judged is None else judged.ratios[routing]
    return TunedTimes(
        before_s=median(before),
        before_interval_s=_interval(before),
        after_s=median(after),
        after_interval_s=_interval(after),
        change_share=None if found is None else found.share,
        change_interval_share=None if found is None else _pair(found.low, found.high),
    )


def _interval(times_s: Sequence[float]) -> Interval | None:
    _, low, high = middle_of(times_s)
    return _pair(low, high)


def _pair(low: float | None, high: float | None) -> Interval | None:
    return None if low is None or high is None else (low, high)
