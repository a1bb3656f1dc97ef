"""`slo-bench kernels` from its options to kernels.json, on the simulated kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reports.kernels import KernelsDocument, read_kernels
from slo_bench.cli import main
from slo_bench.moe.bench import Batch, BenchFacts, Case, Checked, Effort, Layer, Timed
from slo_bench.moe.config_files import ConfigFile, write_config
from slo_bench.moe.kernel_rows import table_lines
from slo_bench.moe.kernels import HEURISTIC, TUNED, find_sources, timed_document
from slo_bench.moe.kernels_options import KernelsOptions
from slo_bench.moe.routing import concentrated, draw, uniform
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tune_simulated import SimulatedBench, SimulatedKernel
from traffic.virtual_time import run_virtual

SHAPE, FP8 = MoeShape(128, 768, 2048, 8), Quantisation("fp8_w8a8", (128, 128))
WORDS = ["--shape", "E=128,N=768,K=2048,top-k=8", "--dtype", "fp8_w8a8", "--block-shape", "128,128"]
NAME = "E=128,N=768,device_name={},dtype=fp8_w8a8,block_shape=[128,128].json"
NARROW, WIDE = KernelConfig(16, 128, 128, 1, 4, 4), KernelConfig(64, 128, 128, 32, 4, 3)
HIGH = KernelConfig(128, 128, 128, 1, 8, 4)


def options(**more: object) -> KernelsOptions:
    values = {"shape": WORDS[1], "dtype": "fp8_w8a8", "block_shape": "128,128", "batch_size": ["128"]}
    return KernelsOptions(**{**values, **more})  # type: ignore[arg-type]


def tuned_folder(folder: Path, device: str, config: KernelConfig) -> Path:
    folder.mkdir()
    write_config(folder / NAME.format(device), ConfigFile({64: config.entry()}))
    return folder


def test_it_times_the_heuristic_and_a_tuned_file_and_says_that_they_are_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tuned_folder(tmp_path / "tuned", "SIMULATED_GPU", NARROW)
    words = ["--simulated", "--batch-size", "1", "--batch-size", "128", "--runs-dir", str(tmp_path / "runs")]
    assert main(["kernels", *WORDS, *words, "--folder", str(folder)]) == 0
    document = read_kernels(tmp_path / "runs" / "kernels-1")
    assert document is not None
    assert document.is_simulated
    assert document.routings == ["uniform", "concentrated-8-1"]
    assert [(row.tokens, row.source) for row in document.times[:2]] == [(1, HEURISTIC), (1, TUNED)]
    for row in document.times:
        assert row.median_s is not None
        assert row.interval_s is not None
        assert len(row.times_s) == 20
        assert row.interval_s[0] <= row.median_s <= row.interval_s[1]
        assert row.datasheet_share is None
        assert 0 < (row.measured_share or 0) < 1
    assert document.conditions is not None
    assert document.conditions.not_measured == "the engine is simulated"
    said = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[SIMULATED] ") for line in said)


def test_128_tokens_prefer_another_tile_under_each_routing() -> None:
    kernel = SimulatedKernel(SHAPE, FP8)
    ids = {name: draw(of(SHAPE), SHAPE, 128, seed=0) for name, of in (("even", uniform), ("hot", concentrated))}
    times = {
        name: [kernel.true_s(config, Batch(name, 128, (drawn,))) for config in (NARROW, HIGH)]
        for name, drawn in ids.items()
    }
    assert times["even"][0] < times["even"][1]
    assert times["hot"][0] > times["hot"][1]


class Doubtful(SimulatedBench):
    """Its tuned results are wrong, and it must not be asked to time them."""

    async def check(self, cases: Sequence[Case]) -> Sequence[Checked]:
        return [Checked(case, 0.03 if case.entry == WIDE.entry() else 0.07) for case in cases]

    async def time(self, cases: Sequence[Case], effort: Effort) -> Sequence[Timed]:
        assert all(case.entry == WIDE.entry() for case in cases)
        return await super().time(cases, effort)


def test_a_configuration_with_a_wrong_result_is_not_timed_and_the_table_says_why(tmp_path: Path) -> None:
    folder = tuned_folder(tmp_path / "tuned", "SIMULATED_GPU", NARROW)
    document = document_of(Doubtful(SimulatedKernel(SHAPE, FP8)), options(folder=folder))
    heuristic, tuned = document.times
    assert heuristic.median_s is not None
    assert (tuned.median_s, tuned.times_s) == (None, [])
    assert tuned.failure == "its result is wrong: 0.07 from float32, more than 0.06"
    assert document.rows == []
    assert any(line.endswith(tuned.failure) for line in table_lines(document))


def test_bytes_are_those_of_the_experts_hit_and_held_against_the_data_sheet() -> None:
    bench = SimulatedBench(SimulatedKernel(SHAPE, FP8))
    bench.facts = replace(bench.facts, device="NVIDIA H200", is_simulated=False)
    document = document_of(bench, options())
    (row,) = document.times
    assert row.experts_hit == pytest.approx(128, abs=1)
    assert row.bytes == pytest.approx(605e6, rel=0.01)
    assert row.bandwidth_bps is not None
    assert row.datasheet_share == pytest.approx(row.bandwidth_bps / 4.8e12)
    assert row.measured_share == pytest.approx(row.bandwidth_bps / 4.3e12)
    assert row.limit_share == pytest.approx(row.datasheet_share)
    assert document.setting is not None
    assert document.setting.datasheet == "H200 Tensor Core GPU data sheet"
    assert document.conditions is not None
    assert document.conditions.not_measured is not None


def test_the_shipped_file_is_found_beside_vllm_and_a_missing_one_is_said(tmp_path: Path) -> None:
    facts = BenchFacts("NVIDIA H200", 232_448, 16, {"vllm": "0.24.0"}, config_folder=tmp_path / "configs")
    said: list[str] = []
    assert [each.name for each in find_sources(options(), facts, said.append)] == [HEURISTIC]
    assert said == [f"no shipped file: {tmp_path / 'configs'} has no {NAME.format('NVIDIA_H200')}"]
    tuned_folder(tmp_path / "configs", "NVIDIA_H200", NARROW)
    shipped = find_sources(options(batch_size=["1", "4096"]), facts, said.append)[1]
    assert shipped.entries == {1: NARROW.entry(), 4096: NARROW.entry()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --model FOLDER or --shape"),
        ([*WORDS, "--batch-size", "0"], "'0' is no number of tokens"),
        ([*WORDS, "--routing", "odd"], "'odd' is none of uniform, concentrated"),
        ([*WORDS, "--folder", "/nowhere"], "/nowhere is no folder"),
        ([*WORDS, "--label", "a/b"], "no name for a folder"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--shape", "E=8"], "lacks"),
        ([*WORDS[:2], "--block-shape", "x"], "--block-shape 'x'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", "--simulated", "--runs-dir", str(tmp_path / "runs"), *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_named_folder_without_the_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--simulated", "--batch-size", "1", "--runs-dir", str(tmp_path / "runs"), "--folder", str(tmp_path)]
    assert main(["kernels", *WORDS, *words]) == 2
    assert "has no E=128,N=768,device_name=SIMULATED_GPU" in capsys.readouterr().err


def document_of(bench: SimulatedBench, of: KernelsOptions) -> KernelsDocument:
    batches = [Batch("uniform", 128, (draw(uniform(SHAPE), SHAPE, 128, seed=0),))]

    async def run() -> KernelsDocument:
        sources = find_sources(of, bench.facts, lambda _: None)
        layer = Layer(SHAPE, FP8)
        return await timed_document(bench, layer, batches, sources, options=of, say=lambda _: None)

    return run_virtual(run())
