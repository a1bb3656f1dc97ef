"""A sweep on tuned kernels begins only where the file is there that its server will look for."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.run_directory import to_json
from slo_bench.bare_run.machine_file import MachineFile
from slo_bench.bare_run.translation import SIMULATED_LAYER
from slo_bench.bare_run.tuned_file import look_for_file
from slo_bench.config import SweepOptions
from slo_bench.moe.tune_files import SIDE_NAME, TunedDocument, TunedFolder

MODEL = "Qwen/Qwen3-30B-A3B-FP8"
SIMULATED = MachineFile(engine="simulated", tune=SIMULATED_LAYER)
FILE = "E=128,N=768,device_name=SIMULATED_GPU,dtype=fp8_w8a8,block_shape=[128,128].json"


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepOptions:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slo_bench.bare_run.translation.config_of", lambda *_, **__: None)
    return SweepOptions(engine="simulated")


def marked(folder: Path, name: str) -> None:
    """A file whose times come from a model of the kernel."""
    made = TunedFolder(folder, name)
    made.file.write_text("{}")
    made.side.mkdir(parents=True)
    document = TunedDocument(
        schema_version=1, file=name, is_simulated=True, is_finished=True, about={}, command="slo-bench tune"
    )
    (made.side / SIDE_NAME).write_text(to_json(document))


def test_a_folder_that_is_not_there_or_empty_lacks_the_file(tmp_path: Path, options: SweepOptions) -> None:
    for folder in (tmp_path / "none", tmp_path):
        found = look_for_file(folder, MODEL, options, SIMULATED)
        assert found.lack == f"TUNED_MOE_DIR {folder} holds no tuned file: tune it first: TUNE_MOE=1"


def test_another_layers_file_is_not_the_one_that_is_needed(tmp_path: Path, options: SweepOptions) -> None:
    (tmp_path / "E=8,N=64.json").write_text("{}")
    found = look_for_file(tmp_path, MODEL, options, SIMULATED)
    assert found.lack is not None
    assert FILE in found.lack
    assert "it has E=8,N=64.json" in found.lack
    assert "\n" not in found.lack


def test_the_file_of_this_layer_is_found_among_others(tmp_path: Path, options: SweepOptions) -> None:
    (tmp_path / "E=8,N=64.json").write_text("{}")
    (tmp_path / FILE).write_text("{}")
    found = look_for_file(tmp_path, MODEL, options, SIMULATED)
    assert (found.file, found.lack) == (FILE, None)


def test_where_the_name_is_not_known_any_file_will_do_but_none_that_is_simulated(
    tmp_path: Path, options: SweepOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slo_bench.bare_run.tuned_file.config_of", lambda *_, **__: None)
    monkeypatch.setattr("slo_bench.bare_run.tuned_file.read_gpus", lambda: None)
    (tmp_path / "E=8,N=64.json").write_text("{}")
    assert look_for_file(tmp_path, MODEL, options, MachineFile()).file == "E=8,N=64.json"
    marked(tmp_path, FILE)
    found = look_for_file(tmp_path, MODEL, options, MachineFile())
    assert found.lack is not None
    assert f"{FILE} is SIMULATED, and for no server" in found.lack
