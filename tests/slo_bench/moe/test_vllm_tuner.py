"""vLLM's own tuner, run on a stand-in that prints and writes what the script does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from slo_bench.moe import vllm_tuner
from slo_bench.moe.vllm_tuner import SCRIPT, Published, check_checkout, parse_times, run_published
from traffic.errors import EngineError, UsageError

STAND_IN = """
import argparse, json, os, pathlib
parser = argparse.ArgumentParser()
for name in ("--model", "--dtype", "--save-dir", "--tp-size"):
    parser.add_argument(name)
parser.add_argument("--batch-size", type=int, nargs="+")
parser.add_argument("--tune", action="store_true")
given = parser.parse_args()
assert given.dtype == "fp8_w8a8"
entry = {"BLOCK_SIZE_M": 16}
folder = pathlib.Path(os.environ["VLLM_TUNED_CONFIG_FOLDER"])
if given.model == "breaks":
    raise SystemExit("ValueError: no such model")
if given.model == ("hangs tuning" if given.tune else "hangs"):
    __import__("time").sleep(60)
if given.tune:
    file = pathlib.Path(given.save_dir, "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json")
    file.write_text(json.dumps({"triton_version": "3.6.0", **{str(size): entry for size in given.batch_size}}))
else:
    time = 90 if any(folder.iterdir()) else 100
    for size in given.batch_size:
        print(f"Batch size: {size}, config: {entry}")
        print(f"Kernel time: {time + size:.2f} us")
"""


def checkout_at(path: Path, tag: str | None) -> Path:
    (path / SCRIPT).parent.mkdir(parents=True)
    (path / SCRIPT).write_text(STAND_IN)
    if tag is not None:
        git = ["git", "-C", str(path), "-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"], ["tag", tag]):
            subprocess.run([*git, *words], check=True)
    return path


def published(checkout: Path, folder: Path, model: str = "m") -> Published:
    return Published(Path(sys.executable), checkout, model, "fp8_w8a8", (1, 64), folder)


def test_the_right_dtype_is_always_given() -> None:
    call = published(Path("/vllm"), Path("/out"))
    assert call.command(is_tuning=True)[1:] == tuple(
        "/vllm/benchmarks/kernels/benchmark_moe.py --model m --tp-size 1 --dtype fp8_w8a8 --batch-size 1 64 --tune "
        "--save-dir /out".split()
    )
    assert "--tune" not in call.command(is_tuning=False)


def test_times_are_read_whatever_stands_before_them() -> None:
    text = "(BenchmarkWorker pid=7) Batch size: 64, config: {'BLOCK_SIZE_M': 16}\nnoise\nKernel time: 177.02 us\n"
    found = parse_times(text)
    assert found.times_s == {64: pytest.approx(177.02e-6)}
    assert found.configs == {64: {"BLOCK_SIZE_M": 16}}
    with pytest.raises(EngineError, match="no kernel time"):
        parse_times("nothing")


@pytest.mark.process
def test_a_checkout_of_another_release_is_refused(tmp_path: Path) -> None:
    assert check_checkout(checkout_at(tmp_path / "right", "v0.24.0"), "0.24.0") is None
    with pytest.raises(UsageError, match=r"at v0\.31\.0, but vLLM 0\.24\.0"):
        check_checkout(checkout_at(tmp_path / "other", "v0.31.0"), "0.24.0")
    assert "not known" in (check_checkout(checkout_at(tmp_path / "none", None), "0.24.0") or "")


def test_a_folder_without_the_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no benchmarks"):
        check_checkout(tmp_path, "0.24.0")


@pytest.mark.process
def test_it_is_timed_before_and_after_and_the_file_is_the_new_one(tmp_path: Path) -> None:
    said: list[str] = []
    call = published(checkout_at(tmp_path / "vllm", None), tmp_path / "out")
    result = asyncio.run(run_published(call, tmp_path / "log", said.append))
    assert result.file.parent == tmp_path / "out"
    assert result.before.times_s == {1: pytest.approx(101e-6), 64: pytest.approx(164e-6)}
    assert result.after.times_s == {1: pytest.approx(91e-6), 64: pytest.approx(154e-6)}
    assert len(said) == 3


@pytest.mark.process
def test_a_script_that_fails_is_one_line_with_its_reason(tmp_path: Path) -> None:
    call = published(checkout_at(tmp_path / "vllm", None), tmp_path / "out", "breaks")
    with pytest.raises(EngineError, match="no such model") as failed:
        asyncio.run(run_published(call, tmp_path / "log", lambda _: None))
    assert "\n" not in str(failed.value)


@pytest.mark.process
@pytest.mark.parametrize("model", ["hangs", "hangs tuning"])
def test_a_script_that_hangs_is_ended_at_its_limit(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_tuner, "TUNING_LIMIT_S" if "tuning" in model else "BENCHMARK_LIMIT_S", 0.6)
    what = published(checkout_at(tmp_path / "vllm", "v0.24.0"), tmp_path / "out", model)
    with pytest.raises(EngineError, match="has not ended after 0 min"):
        asyncio.run(run_published(what, tmp_path / "log", lambda _: None))
