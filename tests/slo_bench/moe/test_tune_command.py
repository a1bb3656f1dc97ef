"""`slo-bench tune` from its options to its files, on the simulated kernel."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from reports.kernels import read_kernels
from slo_bench.cli import main
from slo_bench.moe.config_files import ConfigFile, read_config, write_config
from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tune import Machines
from slo_bench.moe.tune_command import installed_configs, published_kernels, run_tune
from slo_bench.moe.tune_files import TunedDocument, TunedFolder, shipped_entry
from slo_bench.moe.tune_options import TuneOptions
from slo_bench.moe.tune_simulated import simulated_machines
from slo_bench.moe.vllm_tuner import PublishedResult, PublishedTimes
from slo_bench.stopped import Stopped
from traffic.errors import UsageError
from traffic.virtual_time import run_virtual

NAME = "E=128,N=768,device_name=SIMULATED_GPU,dtype=fp8_w8a8,block_shape=[128,128].json"
SHAPE = ["--shape", "E=128,N=768,K=2048,top-k=8", "--dtype", "fp8_w8a8", "--block-shape", "128,128"]
QUICK = ["tune", "--simulated", *SHAPE, "--compilers", "4", "--minutes", "0.4", "--batch-size", "64"]


def options(folder: Path, **more: object) -> TuneOptions:
    values = {"shape": SHAPE[1], "dtype": "fp8_w8a8", "block_shape": "128,128", "simulated": True, "output": folder}
    return TuneOptions(**{**values, "batch_size": ["64"], "minutes": 0.4, **more})  # type: ignore[arg-type]


def machines(of: TuneOptions) -> Machines:
    return simulated_machines(*of.layer(), compilers=4)


def test_it_writes_a_file_that_vllm_reads_and_what_is_known_of_it_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, "--batch-size", "256", "--output", str(tmp_path)]) == 0
    config = read_config(tmp_path / NAME)
    assert list(config.entries) == [64, 256]
    assert config.unknown == {}
    assert config.triton_version == "simulated"
    side = TunedFolder(tmp_path, NAME).side
    told = TunedDocument.model_validate_json((side / "tuned.json").read_text())
    assert (told.is_simulated, told.is_finished, told.is_complete) == (True, True, False)
    assert [size.chosen for size in told.sizes] == list(config.entries.values())
    kernels = read_kernels(side)
    assert kernels is not None
    assert kernels.routings == ["uniform", "concentrated-8-1"]
    for routing in kernels.routings:
        assert all(change < 0.01 for change in kernels.changes(routing).values())
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("[SIMULATED] ") for line in said)
    assert "the default was number" in said[-5]


def test_a_folder_is_not_searched_twice_by_mistake_and_another_search_is_not_gone_on_with(tmp_path: Path) -> None:
    assert main([*QUICK, "--output", str(tmp_path)]) == 0
    assert main([*QUICK, "--output", str(tmp_path)]) == 2
    assert main([*QUICK, "--output", str(tmp_path), "--resume"]) == 0
    assert main([*QUICK, "--output", str(tmp_path), "--resume", "--seed", "1"]) == 2
    assert main([*QUICK, "--output", str(tmp_path), "--resume", "--batch-size", "128"]) == 2


def test_a_signal_keeps_what_there_is_and_says_how_to_go_on(tmp_path: Path) -> None:
    of = options(tmp_path)

    async def stopped() -> None:
        task = asyncio.create_task(run_tune(of, machines(of), lambda _: None))
        await asyncio.sleep(10)
        task.cancel()
        await task

    with pytest.raises(Stopped, match="--resume"):
        run_virtual(stopped())
    folder = TunedFolder(tmp_path, NAME)
    assert not folder.file.exists()
    assert not TunedDocument.model_validate_json((folder.side / "tuned.json").read_text()).is_finished
    before = len(folder.journal.read_text().splitlines())
    assert run_virtual(run_tune(options(tmp_path, resume=True), machines(of), lambda _: None)) == 0
    assert len(folder.journal.read_text().splitlines()) > before
    assert folder.file.exists()


def test_simulated_and_real_files_share_no_folder(tmp_path: Path) -> None:
    real, simulated = TunedFolder(tmp_path / "a", "E=1,N=2,device_name=A.json"), TunedFolder(tmp_path / "b", NAME)
    write_config(tmp_path / "a" / "E=9,N=9,device_name=A.json", ConfigFile({}))
    with pytest.raises(UsageError, match="is of a GPU"):
        real.check(is_simulated=True, is_resumed=False)
    real.check(is_simulated=False, is_resumed=False)
    assert main([*QUICK, "--output", str(tmp_path / "b")]) == 0
    with pytest.raises(UsageError, match="no server may read"):
        TunedFolder(tmp_path / "b", "other.json").check(is_simulated=False, is_resumed=False)
    simulated.check(is_simulated=True, is_resumed=True)


def test_somebody_elses_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("{}")
    with pytest.raises(UsageError, match="has not made it"):
        TunedFolder(tmp_path, NAME).check(is_simulated=False, is_resumed=False)


def test_what_vllm_ships_is_read_with_its_own_rule_for_the_nearest_size(tmp_path: Path) -> None:
    known = KernelConfig(16, 64, 128, 1, 4, 4)
    file = tmp_path / NAME
    file.write_text(json.dumps({"1": known.entry(), "96": {**known.entry(), "SPLIT_K": 2}}))
    assert shipped_entry(read_config(file), 16) == known
    assert shipped_entry(read_config(file), 64) is None
    said: list[str] = []
    of = options(tmp_path / "out", shipped=tmp_path, batch_size=["1"])
    assert run_virtual(run_tune(of, machines(of), said.append)) == 0


def test_an_interpreter_without_vllm_ships_nothing(tmp_path: Path) -> None:
    assert installed_configs(tmp_path / "none") is None


def test_the_published_tuners_times_become_kernels_json() -> None:
    times = PublishedTimes({64: 2e-4, 128: 3e-4}, {}), PublishedTimes({64: 1e-4}, {})
    document = published_kernels(PublishedResult(Path("file"), *times, took_s=60.0))
    assert document.changes("benchmark_moe") == {64: pytest.approx(-0.5)}
    assert document.tuning_s == 60.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--model FOLDER or --shape"),
        ([*SHAPE, "--simulated"], "needs --output"),
        ([*SHAPE, "--batch-size", "0"], "is no number of tokens"),
        ([*SHAPE, "--routing", "other"], "is none of"),
        ([*SHAPE, "--routing", "uniform", "--routing", "uniform"], "each routing once"),
        ([*SHAPE, "--tuner", "vllm"], "--vllm-checkout"),
        (["--model", "m", "--tuner", "vllm", "--vllm-checkout", "d", "--minutes", "3"], "keeps nothing"),
        (["--shape", "E=1,N=2,K=3,top-k=1", "--tensor-parallel-size", "2"], "what a rank holds"),
        (["--shape", "E=1,N=2,K=3,top-k=1", "--block-shape", "x", "--simulated", "--output", "d"], "two whole numbers"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *words]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_the_default_folder_is_the_published_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNED_MOE_DIR", raising=False)
    of = TuneOptions(shape=SHAPE[1])
    assert of.folder() == Path("~/moe-tuned").expanduser()
    monkeypatch.setenv("TUNED_MOE_DIR", "/somewhere")
    assert of.folder() == Path("/somewhere")
    assert len(of.sizes()) == 18
