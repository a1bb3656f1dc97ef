"""What an earlier part of a comparison left behind: effect.json, and its blocks read again from their own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gates.block import block_trend, cohort_of
from gates.comparison import Pair
from gates.pooled import Cohort
from gates.slo import Objective
from gates.verdict import judge_probe
from reports.effect_document import ArmName, BlockRow, EffectDocument
from reports.requests import read_requests
from reports.run_directory import read_document
from slo_bench.compare.plan import ComparisonPlan
from slo_bench.resume import check_same_design
from traffic.errors import UsageError

DOCUMENT = "effect.json"

Trend = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Block:
    """A measured block. trend: see `gates.block.block_trend`."""

    cohort: Cohort
    row: BlockRow
    trend: Trend


@dataclass(frozen=True, slots=True)
class EarlierPart:
    """A comparison that goes on.

    document: None where it stopped before it wrote one. blocks: of A and of B, for each pair of the document in its
    order. lost_s: seconds after the document was written for which its files show that it went on.
    """

    document: EffectDocument | None = None
    blocks: tuple[tuple[Block, Block], ...] = ()
    lost_s: float = 0.0

    @property
    def number(self) -> int:
        """How often it was begun or taken up before."""
        return 1 + (0 if self.document is None else len(self.document.resumed_utc))

    @property
    def answer(self) -> EffectDocument | None:
        """Its document where it came to its end; None where it did not, or where only its time was up."""
        is_over = self.document is not None and self.document.outcome in ("concluded", "not comparable")
        return self.document if is_over else None

    def pairs(self) -> list[Pair]:
        """The pairs as they were kept."""
        rows = [] if self.document is None else self.document.pairs
        return [
            pair_of(row.number, *blocks, a_first=row.a_first) for row, blocks in zip(rows, self.blocks, strict=True)
        ]


def pair_of(number: int, a: Block, b: Block, *, a_first: bool) -> Pair:
    """Two blocks as partners."""
    return Pair(number, a.cohort, b.cohort, a_first, a.row.start, b.row.start)


def block_of(cohort: Cohort, row: BlockRow, trend: Trend) -> Block:
    """A block; what was spent in it stands in its row."""
    spent = replace(cohort, power_mean_w=row.power_mean_w, joules_per_token=row.joules_per_output_token)
    return Block(spent, row, trend)


def read_part(directory: Path, plan: ComparisonPlan) -> EarlierPart:
    """The part of a comparison that a directory holds.

    Raises UsageError for another design, for a document that cannot be read, and for a row that its file contradicts.
    """
    path = directory / DOCUMENT
    if not path.exists():
        return EarlierPart()
    document = read_document(path, EffectDocument)
    check_same_design(str(directory), document.design, plan.design())
    slo = plan.block.load.slo
    blocks = tuple((_read(directory, row.a, slo), _read(directory, row.b, slo)) for row in document.pairs)
    return EarlierPart(document, blocks, _lost_s(directory))


def blocks_run_in(directory: Path) -> int:
    """How many blocks were measured, those of pairs that never came to their end among them."""
    numbers = [each.name.partition("-")[0] for each in directory.glob("blocks/*-*.parquet")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def servers_begun_in(directory: Path, name: ArmName) -> int:
    """How many servers of an arm were started, those whose blocks count for nothing among them."""
    numbers = [each.name.partition("-")[2] for each in directory.glob(f"starts/{name}-*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _read(directory: Path, row: BlockRow, slo: Sequence[Objective]) -> Block:
    path = directory / row.requests_file
    facts = read_requests(path)
    verdict = judge_probe(facts, slo)
    summary = verdict.summary
    counted = (summary.n, summary.failed, summary.mean_tpot_s, verdict.goodput_rps)
    if counted != (row.n, row.failed, row.tpot_mean_s, row.goodput_rps):
        raise UsageError(
            f"{path} and its row in {DOCUMENT} disagree: this comparison cannot go on, measure again under another "
            "--label"
        )
    return block_of(cohort_of(verdict), row, block_trend(facts))


def _lost_s(directory: Path) -> float:
    """How much later than the document the last file was written: that time was spent too."""
    moments_s = [each.stat().st_mtime for each in directory.rglob("*") if each.is_file()]
    return max(moments_s) - (directory / DOCUMENT).stat().st_mtime
