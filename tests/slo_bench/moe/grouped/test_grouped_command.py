"""`slo-bench kernels --backend flashinfer-grouped-gemm` on the simulated model, from options to note and exit code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reports.run_directory import read_document
from slo_bench.cli import main
from slo_bench.moe.gpu_bench import Limits
from slo_bench.moe.grouped.bench import CheckCase, Checked, CheckedStage, Difference
from slo_bench.moe.grouped.document import GROUPED_NAME, GroupedDocument, TimeRow
from slo_bench.moe.grouped.gpu_bench import grouped_place, start_grouped
from slo_bench.moe.grouped.options import plan_of
from slo_bench.moe.grouped.report import note, table_lines
from slo_bench.moe.grouped.run import measured
from slo_bench.moe.grouped.simulated import SimulatedGroupedBench
from slo_bench.moe.grouped.slowest import main_change, rows_of, safest_estimate
from slo_bench.moe.grouped.verdict import Comparison, Verdict
from slo_bench.moe.kernels_options import KernelsOptions
from traffic.errors import EngineError, UsageError
from traffic.virtual_time import run_virtual

WORDS = ["kernels", "--backend", "flashinfer-grouped-gemm", "--simulated", "--samples", "8"]
FEW = ["--batch-size", "31", "--batch-size", "32", "--estimate", "5", "--estimate", "65"]


def options(**more: object) -> KernelsOptions:
    values = {"backend": "flashinfer-grouped-gemm", "simulated": True, "samples": 8, "batch_size": ["31", "32"]}
    return KernelsOptions(**{**values, **more})  # type: ignore[arg-type]


def document_of(bench: SimulatedGroupedBench) -> GroupedDocument:
    plan = plan_of(options(), bench.facts.sms)
    return run_virtual(measured(bench, plan, lambda _: None))


def test_a_simulated_run_leaves_every_rank_a_note_and_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, *FEW, "--runs-dir", str(tmp_path)]) == 0
    folder = tmp_path / "kernels-1"
    document = read_document(folder / GROUPED_NAME, GroupedDocument)
    assert document.is_simulated
    assert (document.setting.hidden, document.setting.intermediate, document.setting.ep_size) == (4096, 2048, 8)
    for routing in document.routings:
        for tokens in (31, 32, 288):
            for source in ("shipped", "corrected"):
                rows = rows_of(document, tokens, routing, source)
                assert [row.rank for row in rows] == list(range(8))
                assert {len(row.fc1_s) for row in rows} == {8}
        assert [row.estimate for row in rows_of(document, 288, routing, "scan")] == [5, 65]
    assert {row.estimate: row.branch.value for row in document.estimates} == {
        1: "swapAB", 5: "swapAB", 31: "swapAB", 32: "normal", 65: "normal", 288: "normal",
    }  # fmt: skip
    text = (folder / "grouped.md").read_text()
    assert text.startswith("# SIMULATED: Grouped GEMM of FlashInfer simulated on SIMULATED GPU\n")
    assert "Not in the times: communication between ranks" in text
    assert "No claim for other GPUs, other EP sizes, or serving" in text
    assert "source backport" in text
    assert "| concentrated-6-1 | 7 (idle) | 0 | 0 | 0 |" in text
    picture = (folder / "grouped.svg").read_text()
    assert 'id="flip-shipped"' in picture
    said = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[SIMULATED] ") for line in said)
    assert "[SIMULATED] results: all three comparisons pass" in said


def test_the_slowest_rank_is_the_one_that_all_wait_for() -> None:
    document = document_of(SimulatedGroupedBench(0))
    change = main_change(document, "concentrated-6-1")
    assert (change.shipped.rank, change.corrected.rank) == (0, 0)
    idle = [row for row in rows_of(document, 288, "concentrated-6-1", "shipped") if row.rank]
    assert all(row.median_s < change.shipped.median_s for row in idle)
    assert change.total.share < 0


def test_the_safest_estimate_is_the_one_that_loses_least_where_it_loses_most() -> None:
    document = document_of(SimulatedGroupedBench(0))
    times = [row for row in document.times if row.source != "scan"]
    median_s = {
        "uniform": {288: 10.0, 5: 6.0, 64: 8.0, 65: 10.1},
        "concentrated-6-1": {288: 5.0, 5: 9.0, 64: 5.1, 65: 5.0},
    }
    times += [
        TimeRow(
            tokens=288, routing=routing, rank=0, source="scan", estimate=estimate, fc1_s=[time_s] * 8, fc2_s=[0] * 8
        )
        for routing, row in median_s.items()
        for estimate, time_s in row.items()
    ]
    scanned = document.model_copy(update={"times": times})
    found = safest_estimate(scanned)
    assert found is not None
    estimate, moved = found
    assert estimate == 65
    assert {routing: round(each.share, 3) for routing, each in moved.items()} == {
        "uniform": 0.01,
        "concentrated-6-1": 0.0,
    }
    assert "suits least has an estimate of **65**: against the shipped one +1.0 %" in note(scanned, "grouped.svg")
    without = [row for row in times if (row.source, row.estimate) != ("scan", 288)]
    assert safest_estimate(document.model_copy(update={"times": without})) is None


def test_a_larger_call_has_all_the_tokens_of_a_smaller_one() -> None:
    plan = plan_of(options(), 132)
    for routing in plan.routings:
        assert (plan.ids(routing, 32)[:31] == plan.ids(routing, 31)).all()


class Unlike(SimulatedGroupedBench):
    """Both estimates give the same, and it is not the reference."""

    async def check(self, cases: Sequence[CheckCase]) -> Sequence[Checked]:
        far, same = Difference(0.2, 0.4), Difference(0.0, 0.0)
        said = {
            Comparison.SHIPPED_REFERENCE: far,
            Comparison.CORRECTED_REFERENCE: Difference(None, None),
            Comparison.CORRECTED_SHIPPED: same,
        }
        stages = tuple(CheckedStage(number, said, is_equal=True, rounding=far) for number in (1, 2))
        return [Checked(stages, {"shipped": ("fp8_gemm_kernel",)}) for _ in cases]


def test_a_reference_that_both_miss_is_unexplained_and_the_note_claims_nothing() -> None:
    document = document_of(Unlike(0))
    assert document.verdict is Verdict.UNEXPLAINED
    text = note(document, "grouped.svg")
    assert "**No result: reference unexplained.**" in text
    assert "Verdict: **reference unexplained**, which is no pass." in text
    assert "0 of 8 | 0.2 | 0.4 |" in text
    assert "not finite" in text
    assert "Kernels seen at an estimate of 288: `fp8_gemm_kernel`." in text
    assert "results: reference unexplained" in list(table_lines(document))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--estimate", "1729"], "288 tokens x top-6 are fewer rows"),
        (["--shape", "E=10,N=128,K=128,top-k=2,ep=4"], "not even over 4 ranks"),
        (["--shape", "E=16,N=128,K=128,top-k=4,ep=8"], "fewer experts than a token goes to"),
        (["--dtype", "fp8_w8a16"], "FP8 in blocks of 128 x 128"),
        (["--folder", "/"], "--folder has tile sizes for Triton"),
        (["--samples", "3"], "samples"),
    ],
)
def test_what_flashinfers_path_cannot_take_is_refused_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, *words, "--runs-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_script_belongs_to_this_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--shape", "E=8,N=128,K=128,top-k=2"]
    assert main(["kernels", *shape, "--export-script", str(tmp_path / "x.py")]) == 2
    assert "--export-script goes with --backend flashinfer-grouped-gemm" in capsys.readouterr().err


@pytest.mark.process
def test_an_interpreter_without_torch_is_an_engine_error_in_one_line(tmp_path: Path) -> None:
    """What runs on a GPU is loaded by its path, and dies of the first import that this interpreter has not."""

    async def start() -> None:
        place = replace(grouped_place(Path(sys.executable), tmp_path), limits=Limits(connect_s=30))
        bench = await start_grouped(place, None)
        await bench.close()

    with pytest.raises((EngineError, UsageError), match=r"No module named 'torch'|no CUDA GPU answers") as caught:
        asyncio.run(start())
    assert "\n" not in str(caught.value)
