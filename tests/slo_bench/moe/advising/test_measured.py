"""`slo-bench advise --measure` from its options to advice.json; the processes are stand-ins without a GPU."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import fake_kernel_worker as fake
import pytest

from reports.kernels import read_kernels
from reports.run_directory import read_document, to_json
from slo_bench.cli import main
from slo_bench.moe.advising import command
from slo_bench.moe.advising.bound import AdviceDocument, Verdict
from slo_bench.moe.advising.measured import SIZES
from slo_bench.moe.config_files import ConfigFile, write_config
from slo_bench.moe.gpu_bench import GpuPlace
from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tune_files import SIDE_NAME, TunedDocument, TunedFolder, TunedSize

NAME = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
CONFIG = {
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "hidden_size": 2048,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "vocab_size": 1000,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes are stand-ins; nothing else of the command is."""
    real = command.place_for

    def place(python: Path | None, folder: Path) -> GpuPlace:
        assert python is None
        return replace(real(python, folder), python=Path(sys.executable), program=Path(fake.__file__))

    monkeypatch.setattr(command, "place_for", place)
    monkeypatch.delenv("VLLM_TUNED_CONFIG_FOLDER", raising=False)


def model(folder: Path, **more: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **more}))
    return folder


def advised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a measured model."""
    assert main(["advise", "--measure", "--model", str(model(tmp_path / "model"))]) == 0
    return capsys.readouterr().out


def test_kernel_and_steps_make_a_bound_a_verdict_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "advice"
    words = ["--measure", "--model", str(model(tmp_path / "model")), "--output", str(output)]
    assert main(["advise", *words]) == 0
    document = read_document(output / "advice.json", AdviceDocument)
    assert (document.layers, document.moe_layers, document.source) == (48, 48, "heuristic")
    assert {(row.tokens, row.routing) for row in document.bounds} == {
        (size, routing) for size in SIZES for routing in ("uniform", "concentrated-8-1")
    }
    for row in document.bounds:
        assert row.kernel_s == 1e-4
        layer_s = 150e-6 if row.routing == "uniform" else 100e-6
        assert row.layer_s == pytest.approx(layer_s)
        assert row.step_s == pytest.approx(200e-6 + 48 * layer_s)
        assert row.moe_share == pytest.approx(48 * 1e-4 / (200e-6 + 48 * layer_s))
        assert row.limit_s is not None
        assert row.most_share == pytest.approx(48 * max(0.0, 1e-4 - row.limit_s) / (200e-6 + 48 * layer_s))
    assert document.verdict is Verdict.TUNE
    kernels = read_kernels(output)
    assert kernels == document.kernels
    assert {path.name for path in output.iterdir()} == {
        "advice.json",
        "kernels.json",
        "bench.log",
        "model-4.log",
        "model-12.log",
    }
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"vLLM looks for {NAME}"
    assert not any("not known without measuring" in line for line in said)
    assert said[-1] == document.sentence
    assert any(line.startswith("64 tokens, uniform: the kernel takes 100.0 us a layer") for line in said)


def test_a_tuned_file_is_what_is_measured_where_the_server_would_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tuned"
    folder.mkdir()
    write_config(folder / NAME, ConfigFile({64: KernelConfig(16, 64, 128, 1, 4, 3).entry()}))
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(folder))
    said = advised(tmp_path, capsys)
    assert "measured with the file in VLLM_TUNED_CONFIG_FOLDER" in said
    assert f"{folder / NAME} has 1 batch sizes" in said
    assert "\nTune:" in said


@pytest.mark.parametrize(
    ("is_complete", "sizes", "verdict"),
    [
        (True, SIZES, "Change the backend, or leave it:"),
        (True, SIZES[:1], "Tune:"),
        (False, SIZES, "Tune:"),
    ],
)
def test_a_file_of_a_whole_search_is_not_to_be_searched_again(
    *,
    is_complete: bool,
    sizes: tuple[int, ...],
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = TunedFolder(tmp_path / "tuned", NAME)
    folder.side.mkdir(parents=True)
    write_config(folder.file, ConfigFile({64: KernelConfig(16, 64, 128, 1, 4, 3).entry()}))
    told = TunedDocument(
        file=NAME,
        is_simulated=False,
        is_finished=True,
        about={},
        command="slo-bench tune",
        is_complete=is_complete,
        sizes=[
            TunedSize(
                tokens=size,
                default={},
                chosen={},
                is_default=True,
                default_rank=1,
                tried=1,
                finalists=0,
                routings={},
            )
            for size in sizes
        ],
    )
    (folder.side / SIDE_NAME).write_text(to_json(told))
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(folder.folder))
    assert f"\n{verdict}" in advised(tmp_path, capsys)


def test_a_shape_has_no_steps_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--shape", "E=128,N=768,K=2048,top-k=8", "--dtype", "fp8_w8a8", "--block-shape", "128,128"]
    assert main(["advise", "--measure", *words]) == 0
    assert "the MoE share of a step is not measured: that takes --model FOLDER" in capsys.readouterr().out


def test_a_model_that_does_not_fit_ends_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = str(model(tmp_path / "model", hidden_size=fake.NO_ROOM))
    assert main(["advise", "--measure", "--model", small, "--output", str(tmp_path / "advice")]) == 2
    assert "CUDA out of memory" in capsys.readouterr().err


def test_a_kernel_that_always_fails_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tuned"
    folder.mkdir()
    write_config(folder / NAME, ConfigFile({64: KernelConfig(fake.FAILS, 64, 128, 1, 4, 3).entry()}))
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(folder))
    words = ["--model", str(model(tmp_path / "model")), "--output", str(tmp_path / "advice")]
    assert main(["advise", "--measure", *words]) == 2
    assert "the kernel cannot be timed on NVIDIA H200: OutOfResources" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--measure"], "give vLLM's log, a run directory"),
        (["--measure", "--warning", "x"], "--measure needs --model"),
        (["--model", "m", "--output", "o"], "go with --measure"),
        (["--measure", "--model", "/nowhere"], "no such file"),
    ],
)
def test_what_cannot_be_measured_is_said_before(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *words]) == 2
    assert reason in capsys.readouterr().err


def test_an_interpreter_without_vllm_is_named_and_its_log_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    words = ["--shape", "E=128,N=768,K=2048,top-k=8", "--vllm-python", sys.executable]
    assert main(["advise", "--measure", *words]) == 4
    said = capsys.readouterr().err.splitlines()[-1]
    assert "No module named" in said
    assert "give the interpreter that has vLLM with --vllm-python" in said
    log = Path(said.partition("its log is ")[2])
    assert "ModuleNotFoundError" in log.read_text()
    shutil.rmtree(log.parent)
