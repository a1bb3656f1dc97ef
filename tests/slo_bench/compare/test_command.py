"""`slo-bench compare` from the outside: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gates.comparison import Claim
from reports.effect_document import EffectDocument
from reports.run_directory import RunDocument, read_document, to_json
from slo_bench.cli import main
from slo_bench.compare.command import sharing
from slo_bench.config import LoadOptions
from traffic.errors import UsageError

SHORT = [
    *("--workload", "fixed", "--input-tokens", "20", "--output-tokens", "8"),
    *("--duration", "4", "--ramp", "1", "--request-rate", "10"),
]  # fmt: skip
SIMULATED = ["compare", "--engine", "simulated", "--simulated", "first_shape_cost_s=0", *SHORT]
FASTER = ["--change", "step_time_factor=0.8"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def effect(label: str, pair: str = "A--B") -> EffectDocument:
    return read_document(Path("runs") / label / "compare" / pair / "effect.json", EffectDocument)


def test_it_ends_with_a_table_a_sentence_and_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SIMULATED, *FASTER, "--blocks", "3", "--label", "x", "--labels", "default,tuned"]) == 0
    lines = capsys.readouterr().err.strip().splitlines()
    assert all(line.startswith("[SIMULATED] ") for line in lines)
    assert lines[0].endswith("x: tuned (step_time_factor=0.8) against default")
    assert sum("] pair " in line for line in lines) == 3
    assert any(line.startswith("[SIMULATED] mean TPOT") for line in lines)
    assert any(
        "Between these two server instances mean TPOT of tuned (step_time_factor=0.8) is 2" in line for line in lines
    )
    assert any("smallest effect on mean TPOT" in line for line in lines)
    note = Path(lines[-1].partition("note: ")[2])
    assert note == Path("runs/x/compare/default--tuned/effect.md")
    assert note.read_text().startswith("# SIMULATED: tuned against default at 10.00 req/s")
    document = effect("x", "default--tuned")
    assert document.primary.claim is Claim.BETWEEN_INSTANCES
    assert document.primary.share == pytest.approx(-0.2, abs=0.05)
    run = read_document(Path("runs/x/run.json"), RunDocument)
    assert (run.kind, run.status, run.config["change"]) == ("compare", "done", ["step_time_factor=0.8"])


def test_a_control_is_measured_beside_the_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SIMULATED, *FASTER, "--control", "--blocks", "6", "--label", "x"]) == 0
    said = capsys.readouterr().err
    assert "control, the second start of A against its first: mean TPOT " in said
    assert "beyond what a second start of A differs by" in said
    document = effect("x")
    assert [row.start for row in document.a.starts] == [0, 1]
    assert [row.start for row in document.b.starts] == [0]
    assert [row.a.start for row in document.pairs] == [0, 1, 0, 1, 0, 1]
    assert document.primary.control_interval is not None
    assert "and a second one of A as a control" in Path("runs/x/compare/A--B/effect.md").read_text()


@pytest.mark.process
def test_restarts_may_be_called_real_and_json_is_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SIMULATED, *FASTER, "--placement", "restart", "--blocks", "4", "--label", "x", "--json"]
    assert main(argv) == 0
    output = capsys.readouterr()
    assert "Real: at 10.00 req/s" in output.err
    assert EffectDocument.model_validate_json(output.out) == effect("x")
    assert effect("x").starts_per_arm == 4


def test_equal_arms_are_compared_when_that_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SIMULATED, "--same-ok", "--blocks", "3", "--simulated", "wander_share=0"]) == 0
    assert "compare-1: B (the same) against A" in capsys.readouterr().err
    assert effect("compare-1").primary.claim is not Claim.REAL


@pytest.mark.process
def test_a_closed_loop_is_named_on_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [each for each in SIMULATED if each not in ("--request-rate", "10")]
    assert main([*argv, *FASTER, "--concurrency", "2", "--blocks", "3", "--label", "x", "--duration", "2"]) == 0
    assert all(line.startswith("[SIMULATED] [closed loop] ") for line in capsys.readouterr().err.strip().splitlines())
    assert effect("x").rate_rps is None


def test_a_dry_run_tells_blocks_and_load_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SIMULATED, *FASTER, "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "12 blocks, 2 server starts; at most" in said
    assert list(tmp_path.iterdir()) == []


def test_time_that_runs_out_is_exit_code_5(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SIMULATED, *FASTER, "--max-minutes", "0.3", "--label", "x"]) == 5
    assert "Inconclusive: " in capsys.readouterr().err
    assert effect("x").outcome == "unfinished"


@pytest.mark.process
def test_a_load_that_is_too_much_is_exit_code_5(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SIMULATED, "--same-ok", "--simulated", "max_num_seqs=1", "--request-rate", "40", "--slo", "ttft:p99:100"]
    assert main([*argv, "--label", "x", "--duration", "2"]) == 5
    assert "Not comparable: neither A nor B keeps up with this load" in capsys.readouterr().err


@pytest.mark.process
def test_too_little_cache_side_by_side_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    tight = ["--simulated", "max_model_len=30", "--simulated", "kv_cache_tokens=30"]
    assert main([*SIMULATED, *FASTER, *tight, "--label", "x", "--request-rate", "4"]) == 3
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("slo-bench: ")
    assert "of its KV cache in use" in said
    assert effect("x").outcome == "invalid"
    assert read_document(Path("runs/x/run.json"), RunDocument).status == "invalid"
    assert "**SIMULATED: Invalid: " in Path("runs/x/compare/A--B/effect.md").read_text()


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        ([*SIMULATED], "nothing differs between the arms"),
        ([*SIMULATED, "--change", "speed=2"], "no engine has an option"),
        ([*SIMULATED, *FASTER, "--blocks", "0"], "greater than or equal to 1"),
        ([*SIMULATED, *FASTER, "--labels", "x,x"], "same label"),
        ([*SIMULATED, *FASTER, "--label", "used"], "exists already"),
        ([*SIMULATED, *FASTER, "--length-scale", "2000"], "--length-scale"),
        ([*SIMULATED, *FASTER, "--placement", "attached"], "--base-url"),
        (["compare", "--base-url", "http://x:1", "--base-url", "http://x:1/v1", *SHORT], "both arms are the server"),
        (["compare", "--base-url", "http://10.0.0.1:1", "--base-url", "http://10.0.0.2:1", *SHORT], "give --yes"),
        (["compare", *FASTER, *SHORT], "no engine"),
        (["compare", "--model", "m", "--change", "max_model_len=20", *SHORT], "m holds 20: use --length-scale"),
        (["compare", "--model", "m", "--change", "expect_moe_config=x.json", *SHORT], "x.json: there is no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "used").mkdir(parents=True)
    (tmp_path / "runs" / "used" / "run.json").touch()
    assert main(argv) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("slo-bench: ")
    assert word in said
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["used"]


@pytest.mark.process
def test_the_same_seed_gives_the_same_documents() -> None:
    for runs in ("one", "two"):
        assert (
            main([*SIMULATED, *FASTER, "--blocks", "3", "--label", "x", "--runs-dir", runs, "--order", "random"]) == 0
        )
    made = [json.loads(Path(runs, "x/compare/A--B/effect.json").read_text()) for runs in ("one", "two")]
    for document in made:
        del document["command"]
    assert made[0] == made[1]


RESUMABLE = [*SIMULATED, *FASTER, "--blocks", "3", "--label", "x"]


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}


def unfinished(**changes: object) -> None:
    """Make it a run that was killed."""
    path = Path("runs/x/run.json")
    stored = read_document(path, RunDocument)
    path.write_text(to_json(stored.model_copy(update={"status": "running", "ended_utc": None, **changes})))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder of a comparison that came to its end."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(RESUMABLE) == 0
    return folder / "runs"


@pytest.fixture
def before(finished: Path, tmp_path: Path) -> dict[str, bytes]:
    """A copy of it in the current folder; its files."""
    shutil.copytree(finished, tmp_path / "runs")
    return contents()


def test_a_finished_comparison_gives_its_answer_again(
    before: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RESUMABLE, "--resume"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "[SIMULATED] x is done: nothing is left to measure"
    assert "Between these two server instances" in "".join(said)
    assert contents() == before


@pytest.mark.process
def test_a_killed_simulated_comparison_comes_to_the_same_bytes(
    before: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished()
    Path("runs/x/compare/A--B/effect.json").unlink()
    Path("runs/x/compare/A--B/.effect.json.partial").write_text("{")
    Path("runs/x/compare/A--B/blocks/99-A.parquet").write_bytes(b"of a pair that never ended")
    assert main([*RESUMABLE, "--resume"]) == 0
    assert "runs again from its start" in capsys.readouterr().err
    assert contents() == before


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--request-rate", "11"], "design.request_rate was 10.0, is 11.0"),
        (["--seed", "3"], "design.seed was 0, is 3"),
        (["--change", "step_time_factor=0.7"], "change was "),
        (["--output-tokens", "9"], "output_tokens was 8, is 9"),
        (["--blocks", "4"], "design.blocks was 3, is 4"),
        (["--labels", "A,C"], 'labels was "A,B", is "A,C"'),
    ],
)
def test_another_configuration_is_refused_with_the_difference(
    more: list[str], reason: str, before: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RESUMABLE, *more, "--resume"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("slo-bench: x cannot be resumed: ")
    assert reason in said
    assert "\n" not in said
    assert contents() == before


@pytest.mark.usefixtures("before")
def test_another_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    here = read_document(Path("runs/x/run.json"), RunDocument).environment
    unfinished(environment={**here, "cpus": 96})
    assert main([*RESUMABLE, "--resume"]) == 2
    assert "cpus was 96, is " in capsys.readouterr().err


@pytest.mark.usefixtures("before")
def test_an_unfinished_comparison_in_the_way_is_one_that_could_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    unfinished()
    assert main(RESUMABLE) == 2
    assert "holds an unfinished run of this configuration: go on with --resume" in capsys.readouterr().err


@pytest.mark.usefixtures("before")
def test_each_command_resumes_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--engine", "simulated", "--label", "x", "--resume"]) == 2
    assert "runs/x is no sweep but a compare, slo-bench compare --resume goes on" in capsys.readouterr().err
    assert main([*RESUMABLE[:-2], "--resume"]) == 2
    assert "--resume needs the --label" in capsys.readouterr().err
    assert main([*RESUMABLE[:-1], "y", "--resume"]) == 2
    assert "there is nothing to resume in runs/y" in capsys.readouterr().err


def vllm(**more: object) -> LoadOptions:
    return LoadOptions(model="m", **more)


def test_servers_that_share_a_gpu_are_each_told_their_cache_and_their_part() -> None:
    shared = sharing(vllm(kv_cache_memory_bytes="12G"), 2, has_gpu=True)
    assert (shared.gpu_memory_utilization, shared.kv_cache_memory_bytes) == (0.45, "12G")
    assert (
        sharing(vllm(kv_cache_memory_bytes="12G", gpu_memory_utilization=0.3), 2, has_gpu=True).gpu_memory_utilization
        == 0.3
    )
    assert sharing(vllm(vllm_arg=["--kv-cache-memory-bytes=1G"]), 6, has_gpu=True).gpu_memory_utilization == 0.15
    with pytest.raises(UsageError, match="needs --kv-cache-memory-bytes"):
        sharing(vllm(), 2, has_gpu=True)
    assert sharing(vllm(), 2, has_gpu=False) == vllm()
    with pytest.raises(UsageError, match="leave it out"):
        sharing(vllm(port=8000), 2, has_gpu=False)
    assert sharing(LoadOptions(engine="simulated"), 2, has_gpu=True) == LoadOptions(engine="simulated")


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.mark.process
def test_two_running_servers_are_compared_and_left_running(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "slo_bench"]
    servers = []
    urls = []
    try:
        for factor, seed in ((1.0, 1), (0.6, 2)):
            port = free_port()
            urls.append(f"http://127.0.0.1:{port}")
            settings = ["--simulated", f"step_time_factor={factor}", "--simulated", "first_shape_cost_s=0"]
            servers.append(
                subprocess.Popen(
                    [*program, "simulate", "--port", str(port), "--seed", str(seed), *settings],
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=tmp_path,
                )
            )
        for server in servers:
            assert server.stderr is not None
            assert "serving" in server.stderr.readline()
        argv = ["compare", "--base-url", urls[0], "--base-url", urls[1], "--blocks", "3", "--label", "x", *SHORT]
        began_s = time.monotonic()
        run = subprocess.run(
            [*program, *argv], cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=240, check=False
        )
        print(run.stderr, f"{time.monotonic() - began_s:.0f} s")
        assert run.returncode == 0, run.stderr
        document = effect("x")
        assert document.placement == "attached"
        assert not document.is_simulated  # a server behind a port is a server
        assert document.primary.share is not None
        assert document.primary.share < -0.2
        assert document.primary.claim is Claim.BETWEEN_INSTANCES
        assert document.unproven
        assert "not proven: " in run.stderr
        assert all(server.poll() is None for server in servers)
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
        for server in servers:
            server.wait(timeout=20)
            if server.stderr is not None:
                server.stderr.close()
