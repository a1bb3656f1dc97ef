"""What is said of vLLM's warning without a GPU."""

import json
from pathlib import Path

import pytest

from reports.metrics import write_metrics
from slo_bench.cli import main
from slo_bench.moe.advising.command import AdviseOptions, question_of
from slo_bench.moe.advising.told import advice, served_shape
from slo_bench.moe.config_files import ConfigFile, parse_name, write_config
from slo_bench.moe.shape import MoeModel, MoeShape, Quantisation
from traffic.errors import UsageError
from traffic.server_facts import Histogram, ServerSample

FP8 = Quantisation("fp8_w8a8", (128, 128))
MODEL = MoeModel(128, 768, 2048, 8, FP8)
NAME = "E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
SHIPPED = "/site/fused_moe/configs"
WARNING = f"Using default MoE config. Performance might be sub-optimal! Config file not found at {SHIPPED}/{NAME}"
PREFIX = "(EngineCore pid=7) INFO 12-01 10:00:00 [x.py:1] "
TRITON = "Using TRITON Fp8 MoE backend out of potential backends: ['TRITON']."
ENTRY = {"BLOCK_SIZE_M": 16, "num_warps": 4}


def said(**options: object) -> str:
    return "\n".join(advice(question_of(AdviseOptions(**options))))  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "hidden_size": 2048,
        "num_experts_per_tok": 8,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tuned(folder: Path, *sizes: int, name: str = NAME) -> Path:
    folder.mkdir(exist_ok=True)
    write_config(folder / name, ConfigFile(dict.fromkeys(sizes, ENTRY), "3.6.0"))
    return folder


def log_of(*messages: str) -> str:
    return "".join(f"{PREFIX}{message}\n" for message in messages)


def test_a_warning_is_answered_however_it_was_pasted(model: Path) -> None:
    for text in (
        WARNING,
        f"WARNING 12-01 10:00:00 [fused_moe.py:1071] {WARNING}",
        WARNING.replace("be sub", "be\n  sub"),
    ):
        words = said(warning=text, model=model)
        assert f"vLLM looks for {NAME}" in words
        assert "it ran its default configuration for every batch size" in words
        assert "64 tokens: a rank reads 126 experts" in words


def test_no_gain_is_promised(model: Path) -> None:
    assert said(warning=WARNING, model=model).splitlines()[-1].startswith("not known without measuring on the GPU")
    assert "not known without the model" in said(warning=WARNING)


def test_a_file_that_was_not_found_is_found_and_its_far_keys_named(model: Path, tmp_path: Path) -> None:
    folder = tuned(tmp_path / "tuned", 96, 128, 256, 512, 1024)
    words = said(warning=WARNING, model=model, folder=[str(folder)])
    assert "has 5 batch sizes, 96 to 1024, tuned with Triton 3.6.0" in words
    assert "steps of 1-47 tokens run the entry for 96, which is far from them" in words
    assert "steps of 2049-8192 tokens run the entry for 1024" in words
    assert f"start the server again with VLLM_TUNED_CONFIG_FOLDER={folder}" in words


def test_r19_a_near_miss_in_the_folder_is_named_and_another_gpus_file_is_none(tmp_path: Path) -> None:
    folder = tuned(tmp_path / "tuned", 1, name=NAME.replace("_80GB_HBM3", ""))
    tuned(folder, 1, name=NAME.replace("H100_80GB_HBM3", "B200"))
    tuned(folder, 1, name=NAME.replace("N=768", "N=384"))
    words = said(warning=WARNING, folder=[str(folder)])
    assert f"it is not in {folder}" in words
    assert "device_name is NVIDIA_H100 instead of NVIDIA_H100_80GB_HBM3" in words
    assert "N is 384 instead of 768" in words
    assert "B200" not in words


def test_without_a_log_the_name_is_computed(model: Path) -> None:
    words = said(model=model, device="NVIDIA H100 80GB HBM3", vllm_version="0.32.0")
    assert f"vLLM looks for {NAME}\nwhether it finds one is not known here" in words
    assert "not known without vLLM's log: whether its MoE backend reads such files" in words
    with pytest.raises(UsageError, match="GPU and release"):
        said(model=model)


def test_a_backend_that_reads_no_file_makes_tuning_pointless(tmp_path: Path, model: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(log_of(TRITON.replace("TRITON", "FLASHINFER_CUTLASS"), WARNING))
    assert "FLASHINFER_CUTLASS, which reads no such file" in said(source=log, model=model)


def test_a_run_says_which_of_its_steps_were_far_from_a_key(tmp_path: Path, model: Path) -> None:
    folder = tuned(tmp_path / "shipped", 96, 128, 256)
    run = tmp_path / "run"
    run.mkdir()
    used = f"Using configuration from {folder / NAME} for MoE layer."
    budget = "Chunked prefill is enabled with max_num_batched_tokens=512."
    (run / "engine.log").write_text(log_of(TRITON, budget, used))
    before, after = (
        Histogram((1.0, 8.0, 64.0), (5, 5, 5), 5.0, 5),
        Histogram((1.0, 8.0, 64.0), (605, 655, 855), 9e4, 1005),
    )
    write_metrics(
        run / "metrics.parquet", [ServerSample(0.0, 0.0, step_tokens=before), ServerSample(9.0, 9.0, step_tokens=after)]
    )
    words = said(source=run, model=model)
    assert f"vLLM said that it read {folder / NAME}" in words
    assert "the run made 1000 steps of 90 tokens on average; the most frequent sizes: 1 (60%), 9-64 (20%)" in words
    assert "in the run, 65% to 85% of 1000 steps were far from the entry that they ran" in words
    assert "not known without a run" not in words


def test_a_model_that_cannot_have_asked_for_the_file_is_refused(model: Path) -> None:
    with pytest.raises(UsageError, match="no parallelism makes of this model"):
        said(warning=WARNING.replace("E=128", "E=512"), model=model)
    with pytest.raises(UsageError, match="not the file of this --shape"):
        said(warning=WARNING, shape="E=128,N=384,K=2048,top-k=8")


@pytest.mark.parametrize(
    ("part", "shape"),
    [
        ("E=128,N=768", MoeShape(128, 768, 2048, 8)),
        ("E=128,N=192", MoeShape(128, 192, 2048, 8, slices=4)),
        ("E=32,N=768", MoeShape(128, 768, 2048, 8, ep_size=4)),
        ("E=25,N=768", MoeShape(128, 768, 2048, 8, ep_size=5)),
        ("E=26,N=768", MoeShape(128, 768, 2048, 8, ep_size=5)),
        ("E=32,N=192", None),
        ("E=100,N=768", None),
    ],
)
def test_the_parallelism_of_a_server_follows_from_the_name_it_asks_for(part: str, shape: MoeShape | None) -> None:
    key = parse_name(NAME.replace("E=128,N=768", part))
    assert key is not None
    assert served_shape(MODEL, key) == shape


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give vLLM's log"),
        (["nowhere.log"], "nowhere.log: no such file"),
        (["--warning", "all is well"], "give the whole line"),
        (["--warning", WARNING, "--folder", "nowhere"], "nowhere is no folder"),
        (["--shape", "E=1"], "lacks N, K, top-k"),
        (["--shape", "E=8,N=8,K=8,top-k=1", "--block-shape", "128"], "two whole numbers"),
        (["--shape", "E=8,N=8,K=8,top-k=1", "--tensor-parallel-size", "2"], "says itself what a rank holds"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_the_simulated_engine_has_no_kernel(tmp_path: Path) -> None:
    engine = {
        "kind": "simulated",
        "model": "m",
        "max_model_len": None,
        "version": None,
        "takes_forced_length": True,
        "start": 0,
        "details": {},
    }
    (tmp_path / "engine.json").write_text(json.dumps(engine))
    with pytest.raises(UsageError, match="simulated engine"):
        said(source=tmp_path)
