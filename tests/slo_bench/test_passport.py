"""A server's passport: versions of its own interpreter, checksums in bounded time, null for what is not there."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from slo_bench.config import SweepOptions
from slo_bench.engine_options import EngineOptions
from slo_bench.passport import data_checksums, image_digest, server_passport, software


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def passport(tmp_path: Path, **options: Any) -> dict[str, Any]:
    said = '{"python": "3.12.3", "packages": {"torch": "2.11.0"}, "torch_cuda": "13.0"}'
    python = program(tmp_path / "python", f"echo '{said}'")
    found = server_passport(EngineOptions(vllm_python=python, **options))
    assert found is not None
    return found


def test_the_servers_own_interpreter_is_asked(tmp_path: Path) -> None:
    found = passport(tmp_path, model="org/model")
    assert (found["packages"], found["torch_cuda"]) == ({"torch": "2.11.0"}, "13.0")
    assert found["model"] == {"id": "org/model", "revision": None, "checksum": None}
    assert found["tuned_files"] is None


def test_a_model_in_a_folder_has_a_checksum_and_so_have_tuned_files(tmp_path: Path) -> None:
    model, tuned = tmp_path / "model", tmp_path / "tuned"
    model.mkdir()
    tuned.mkdir()
    (model / "config.json").write_text("{}")
    (tuned / "E=128.json").write_text("{}")
    before = passport(tmp_path, model=str(model), tuned_moe_dir=tuned)
    (tuned / "E=128.json").write_text('{"1": {}}')
    after = passport(tmp_path, model=str(model), tuned_moe_dir=tuned)
    assert before["model"] == after["model"]
    assert before["model"]["checksum"].startswith("sha256:")
    assert before["tuned_files"] != after["tuned_files"]


def test_a_model_of_the_hub_has_the_revision_that_the_cache_holds(tmp_path: Path) -> None:
    refs = tmp_path / "hub" / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("a" * 40)
    (refs / "v2").write_text("b" * 40)
    home = [f"HF_HOME={tmp_path}"]
    assert passport(tmp_path, model="org/model", server_env=home)["model"]["revision"] == "a" * 40
    asked = passport(tmp_path, model="org/model", server_env=home, vllm_arg=["--revision", "v2"])
    assert asked["model"]["revision"] == "b" * 40
    pinned = passport(tmp_path, model="org/model", vllm_arg=[f"--revision={'c' * 40}"])
    assert pinned["model"]["revision"] == "c" * 40


def test_a_server_that_is_not_started_here_has_none() -> None:
    assert server_passport(EngineOptions(engine="simulated")) is None
    assert server_passport(EngineOptions(base_url="http://127.0.0.1:1")) is None


@pytest.mark.process
def test_this_interpreter_tells_its_packages_without_importing_them() -> None:
    found = software(Path(sys.executable), os.environ)
    assert str(found["python"]).startswith("3.")
    assert found["packages"] == {} or "numpy" not in found["packages"]  # type: ignore[operator]


def test_an_interpreter_that_cannot_say_says_nothing(tmp_path: Path) -> None:
    assert software(tmp_path / "none", os.environ) == {}
    assert software(program(tmp_path / "broken", "echo hello; exit 1"), os.environ) == {}
    assert software(program(tmp_path / "chatty", "echo hello"), os.environ) == {}


def test_an_image_has_the_digest_by_which_its_registry_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert image_digest("vllm") is None
    program(tmp_path / "docker", """echo '[{"Id": "sha256:1", "RepoDigests": ["vllm@sha256:2"]}]'""")
    assert image_digest("vllm") == "vllm@sha256:2"
    program(tmp_path / "docker", """echo '[{"Id": "sha256:1", "RepoDigests": []}]'""")
    assert image_digest("vllm") == "sha256:1"
    program(tmp_path / "docker", "exit 1")
    assert image_digest("vllm") is None


def test_what_was_sent_has_checksums(tmp_path: Path) -> None:
    data = tmp_path / "chat.jsonl"
    data.write_text("{}\n")
    options = SweepOptions(engine="simulated", dataset=str(data), tokenizer="org/name")
    assert list(data_checksums(options)) == [str(data)]
    assert data_checksums(SweepOptions(engine="simulated")) == {}
