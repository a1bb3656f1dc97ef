"""From options to a host."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from slo_bench.config import LoadOptions
from slo_bench.engines import api_key, confirm, expected_moe_config, host_for, simulated_settings
from slo_bench.hosts.attached import AttachedHost
from slo_bench.hosts.simulated import SimulatedHost
from slo_bench.hosts.vllm import VllmHost
from traffic.errors import UsageError


def host(**given: object) -> object:
    return host_for(LoadOptions(**given), log_path=Path("engine.log"), say=print)  # type: ignore[arg-type]


def test_each_kind_of_engine_has_its_host() -> None:
    assert isinstance(host(engine="simulated"), SimulatedHost)
    assert isinstance(host(base_url="http://127.0.0.1:1"), AttachedHost)
    assert isinstance(host(model="somewhere"), VllmHost)


def test_a_moe_file_is_named_by_its_path_or_by_its_name_in_the_tuned_folder(tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    file = tmp_path / "tuned" / "E=8,N=768,device_name=X.json"
    file.write_text(json.dumps({key: {"BLOCK_SIZE_M": 16} for key in ("1", "4", "16", "64", "256", "1024")}))

    def expected(named: str | None) -> object:
        return expected_moe_config(LoadOptions(model="m", tuned_moe_dir=file.parent, expect_moe_config=named))

    assert expected(str(file)) == expected(file.name) == file
    assert (expected("default"), expected(None)) == ("default", None)
    with pytest.raises(UsageError, match="no such file, neither here nor in "):
        expected("E=9,N=768,device_name=X.json")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "misses batch sizes: 256, 512, 1024, 1536, 2048 would run the one for 64"),
        ({"max_num_batched_tokens": 512}, "misses batch sizes: 256, 512 would"),
        ({"max_num_batched_tokens": 128}, None),
        ({"vllm_arg": ["--max-num-batched-tokens", "64"]}, None),
        ({"server_command": "serve {model} {port}"}, None),
    ],
)
def test_a_moe_file_that_the_log_would_refuse_is_refused_before_a_server_starts(
    tmp_path: Path, given: dict[str, object], fault: str | None
) -> None:
    file = tmp_path / "E=8,N=768,device_name=X.json"
    file.write_text(json.dumps({key: {"BLOCK_SIZE_M": 16} for key in ("1", "4", "16", "64")}))
    options = LoadOptions(model="m", expect_moe_config=str(file), **given)  # type: ignore[arg-type]
    if fault is None:
        assert expected_moe_config(options) == file
    else:
        with pytest.raises(UsageError, match=fault):
            expected_moe_config(options)


def test_a_server_beside_others_of_this_run_lets_them_hold_their_memory() -> None:
    host = host_for(LoadOptions(model="m"), log_path=Path("x.log"), say=print, own_pids=lambda: {7})
    assert isinstance(host, VllmHost)
    assert host._gpus.own_pids() == {7}


def test_the_same_command_again_gets_other_prompts_on_a_server_that_runs_already() -> None:  # R17
    first, again = (host(base_url="http://127.0.0.1:1") for _ in range(2))
    assert isinstance(first, AttachedHost)
    assert isinstance(again, AttachedHost)
    assert first._start != again._start
    assert 0 <= first._start < 2**48


def test_a_given_salt_sends_the_same_prompts_again_and_arms_keep_their_distance() -> None:
    options = LoadOptions(base_url="http://127.0.0.1:1", text_salt=7)
    hosts = [host_for(options, log_path=Path("engine.log"), say=print, start=start) for start in (0, 0, 1)]
    assert [each._start for each in hosts if isinstance(each, AttachedHost)] == [7, 7, 8]


@pytest.mark.parametrize("engine", [{"engine": "simulated"}, {"model": "m"}])
def test_a_salt_is_for_servers_that_run_already(engine: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--text-salt would change nothing"):
        host(text_salt=7, **engine)


def test_simulated_settings_are_typed() -> None:
    settings = simulated_settings(["max_num_seqs=4", "step_time_factor=0.5"])
    assert (settings.max_num_seqs, settings.step_time_factor) == (4, 0.5)


@pytest.mark.parametrize("pair", ["speed=1", "max_num_seqs", "max_num_seqs=many", "max_num_seqs=1.5", "max_num_seqs=0"])
def test_impossible_settings_are_refused(pair: str) -> None:
    with pytest.raises(UsageError):
        simulated_settings([pair])


def test_the_key_is_the_option_else_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert api_key(LoadOptions()) == "from-environment"
    assert api_key(LoadOptions(api_key="given")) == "given"  # type: ignore[arg-type]
    assert "given" not in repr(LoadOptions(api_key="given"))  # type: ignore[arg-type]
    monkeypatch.delenv("OPENAI_API_KEY")
    assert api_key(LoadOptions()) is None


def test_another_machine_is_loaded_only_with_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for url in ("http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000/v1"):
        confirm(LoadOptions(base_url=url), is_agreed=False)
    confirm(LoadOptions(base_url="http://192.0.2.1:8000"), is_agreed=True)
    with pytest.raises(UsageError, match="--yes"):
        confirm(LoadOptions(base_url="http://192.0.2.1:8000"), is_agreed=False)


@pytest.mark.parametrize(("typed", "is_yes"), [("y\n", True), ("Yes\n", True), ("\n", False), ("n\n", False)])
def test_a_person_is_asked_once(typed: str, is_yes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = io.StringIO(typed)
    monkeypatch.setattr(answers, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", answers)
    options = LoadOptions(base_url="http://192.0.2.1:8000")
    if is_yes:
        confirm(options, is_agreed=False)
    else:
        with pytest.raises(UsageError, match="no load was sent"):
            confirm(options, is_agreed=False)
