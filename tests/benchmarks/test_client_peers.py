"""How benchmarks/client reads what its peers write: small cuts of files that each of them really wrote."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from client_benchmark import (
    environments,
    load,
    own_client,
    peer_aiperf,
    peer_genai_bench,
    peer_guidellm,
    peer_inference_perf,
    peer_vllm,
)

SAMPLES = Path(__file__).parent / "client_samples"
ASKED = load.Load(rate_rps=20, seconds=1, tokens=64, words=32, first_s=0.05, itl_s=0.01, repeat=0)
PEERS = (peer_aiperf, peer_genai_bench, peer_guidellm, peer_inference_perf, peer_vllm)


def folder_of(peer: ModuleType) -> Path:
    return SAMPLES / peer.NAME.split()[0]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.NAME)
def test_times_are_read_in_seconds_one_for_each_answer(peer: ModuleType) -> None:
    said = peer.read(ASKED, folder_of(peer))
    assert said.finished == len(said.ttft_s) == len(said.tpot_s) >= 3
    assert all(0.050 < each < 0.070 for each in said.ttft_s)
    assert all(0.0095 < each < 0.0105 for each in said.tpot_s)


@pytest.mark.parametrize("peer", [*PEERS, own_client], ids=lambda peer: peer.NAME)
def test_a_peer_that_left_nothing_or_something_else_is_named_so(peer: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(load.CannotRunError, match="it left no"):
        peer.read(ASKED, tmp_path)
    if peer is own_client:
        return
    shutil.copytree(folder_of(peer), tmp_path, dirs_exist_ok=True)
    (path,) = (each for each in tmp_path.rglob("*") if each.is_file())
    path.write_text("[1]\n")
    with pytest.raises(load.CannotRunError, match="it left no"):
        peer.read(ASKED, tmp_path)


def test_aiperf_names_its_requests_and_when_it_let_them_go() -> None:
    said = peer_aiperf.read(ASKED, folder_of(peer_aiperf))
    assert "fc474b66-53e4-4c05-9ef3-25a4b07a9d70" in said.names
    assert said.due_utc_s[0] == pytest.approx(1796278246.513071)
    assert (len(said.names), said.due_s) == (3, None)


def test_aiperf_in_another_unit_is_refused(tmp_path: Path) -> None:
    text = (folder_of(peer_aiperf) / "artifacts" / "profile_export.jsonl").read_text()
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "profile_export.jsonl").write_text(text.replace('"unit": "ms"', '"unit": "us"'))
    with pytest.raises(load.CannotRunError, match="counts in us"):
        peer_aiperf.read(ASKED, tmp_path)


def test_guidellm_tells_when_it_meant_to_send() -> None:
    said = peer_guidellm.read(ASKED, folder_of(peer_guidellm))
    assert said.due_utc_s == pytest.approx([1796278228.8986955, 1796278228.991726, 1796278229.0847564])


def test_a_request_that_failed_has_no_times(tmp_path: Path) -> None:
    name = "per_request_lifecycle_metrics.json"
    entries = json.loads((folder_of(peer_inference_perf) / "reports" / name).read_text())
    entries[0] |= {"error": {"error_type": "made up"}, "computed_metrics": None}
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / name).write_text(json.dumps(entries))
    said = peer_inference_perf.read(ASKED, tmp_path)
    assert (said.asked, said.finished, len(said.ttft_s)) == (3, 2, 2)


def test_vllms_schedule_is_drawn_again_from_its_seed_and_no_request_went_before_it() -> None:
    said = peer_vllm.read(ASKED, folder_of(peer_vllm))
    told = json.loads((folder_of(peer_vllm) / "bench.json").read_text())
    let_go_s = np.array(told["start_times"]) - np.array(told["queue_times"])
    late_s = let_go_s - np.array(said.due_s)
    assert len(late_s) == ASKED.requests
    assert np.min(late_s) == pytest.approx(0, abs=1e-9)
    assert np.max(late_s) < 0.01
    wrong = peer_vllm.due_s(replace(ASKED, repeat=1), told["start_times"], told["queue_times"])
    assert np.max(let_go_s - np.array(wrong)) > 0.05


@pytest.mark.parametrize("peer", [*PEERS, own_client], ids=lambda peer: peer.NAME)
def test_a_command_carries_the_load_and_asks_this_server(peer: ModuleType, tmp_path: Path) -> None:
    asked = replace(ASKED, rate_rps=37, seconds=7, tokens=53)
    place = load.Place("http://127.0.0.1:12345", tmp_path, tmp_path / "tokenizer")
    command = peer.command(Path(sys.executable), asked, place)
    files = (each.read_text() for each in tmp_path.rglob("*") if each.is_file())
    words = " ".join([*command.argv, *files])
    assert place.url in words
    assert "53" in words
    rate = peer_genai_bench.concurrency(asked) if peer is peer_genai_bench else 37
    assert str(rate) in words


def test_what_an_environment_cannot_be_made_of_is_said_before_anything_is_installed(tmp_path: Path) -> None:
    huge = environments.Wanted("a-peer", "a-peer==1", ("python3",), space_gb=1e9)
    with pytest.raises(load.CannotRunError, match=r"a-peer==1 takes 1e\+09 GB, and .* free"):
        environments.interpreter(tmp_path, huge)
    nowhere = environments.Wanted("a-peer", "a-peer==1", ("python0.1",), space_gb=0)
    with pytest.raises(load.CannotRunError, match=r"needs one of python0\.1 on PATH"):
        environments.interpreter(tmp_path, nowhere)


def test_an_environment_that_is_ready_is_used_and_pip_is_not_asked(tmp_path: Path) -> None:
    wanted = environments.Wanted("a-peer", "a-peer==1", ("python0.1",), space_gb=0)
    (tmp_path / "a-peer").mkdir()
    (tmp_path / "a-peer" / "installed.txt").write_text("a-peer==1")
    assert environments.interpreter(tmp_path, wanted) == tmp_path / "a-peer" / "bin" / "python"
