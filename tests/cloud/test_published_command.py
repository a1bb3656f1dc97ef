"""The published command, word for word: a made-up API, a real sshd as the machine, whose own file sets the engine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fake_lambda import FakeLambda
from real_sshd import MISSING, RealSshd

from reports.run_directory import RunDocument, read_document

pytestmark = [pytest.mark.cloud, pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")]

ROOT = Path(__file__).parents[2]
KEY = "laptop"
PUBLISHED = """\
scripts/lambda/cloud.py session --ssh-key <key> --type gpu_1x_h100_sxm5 --max-minutes 300 --yes \\
  --run "MODEL=Qwen/Qwen3-30B-A3B-FP8 MIN_DRIVER=580 MODE=quick SWEEP_START=8 SWEEP_GROWTH=1.25 LABEL=moe-default" \\
  --run "MODEL=Qwen/Qwen3-30B-A3B-FP8 MIN_DRIVER=580 TUNE_MOE=1 TUNE_MINUTES=150 LABEL=moe-tuning" \\
  --run "MODEL=Qwen/Qwen3-30B-A3B-FP8 MIN_DRIVER=580 MODE=quick SWEEP_START=8 SWEEP_GROWTH=1.25 LABEL=moe-tuned \
TUNED_MOE_DIR=~/moe-tuned" \\
  --run "MODEL=Qwen/Qwen3-30B-A3B-FP8 MIN_DRIVER=580 MODE=quick SWEEP_START=8 SWEEP_GROWTH=1.25 LABEL=moe-default-2"
"""


@pytest.fixture
def machine(tmp_path: Path) -> RealSshd:
    """A machine with a driver, and its own configuration: the simulated engine, and an interpreter that has all."""
    made = RealSshd(tmp_path)
    (made.home / "bin").mkdir(parents=True)
    (made.home / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 580.105.08\n")
    (made.home / "bin" / "nvidia-smi").chmod(0o755)
    (made.home / ".bashrc").write_text('PATH="$HOME/bin:$PATH"\n')
    own = made.home / ".config" / "slo-bench"
    own.mkdir(parents=True)
    (own / "machine.toml").write_text(f'engine = "simulated"\npython = "{sys.executable}"\n')
    return made


def environment(fake: FakeLambda, machine: RealSshd, home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    pace = {"SLO_BENCH_CALLS_PER_S": "100", "SLO_BENCH_LAUNCH_EVERY_S": "0.1", "SLO_BENCH_POLL_S": "0.5"}
    link = {
        "SLO_BENCH_SSH_PORT": str(machine.port),
        "SLO_BENCH_SSH_USER": machine.user,
        "SLO_BENCH_SSH_CONFIG": "none",
    }
    api = {"LAMBDA_API_BASE": fake.base_url, "LAMBDA_API_KEY": fake.account.api_key}
    return {
        **os.environ,
        **pace,
        **link,
        **api,
        "PATH": path,
        "HOME": str(home),
        "SLO_BENCH_RUNS_DIR": str(home / "runs"),
    }


def test_it_ends_with_four_run_directories_a_note_the_cost_and_no_machine(tmp_path: Path, machine: RealSshd) -> None:
    home = tmp_path / "laptop"
    (home / ".ssh").mkdir(parents=True)
    with FakeLambda() as fake, machine:
        fake.account.add_ssh_key(KEY, machine.public_key)
        for suffix, text in (("", machine.key.read_text()), (".pub", machine.public_key)):
            (home / ".ssh" / f"id_ed25519{suffix}").write_text(text)
            (home / ".ssh" / f"id_ed25519{suffix}").chmod(0o600)
        words = shlex.split(PUBLISHED.replace("<key>", KEY).replace("\\\n", ""))
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment(fake, machine, home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        said = done.stdout + done.stderr
        print(said)
        assert done.returncode == 0, said
        assert fake.alive() == []
        assert fake.count("launch") == 1
    (session,) = (home / "runs").glob("slob-*/session.json")
    found = {path.parent.name: read_document(path, RunDocument) for path in sorted(session.parent.glob("*/run.json"))}
    assert {name: (each.kind, each.status) for name, each in found.items()} == {
        "moe-default": ("sweep", "done"),
        "moe-default-2": ("sweep", "done"),
        "moe-tuned": ("sweep", "done"),
        "moe-tuning": ("tune", "done"),
    }
    assert "SIMULATED" in (session.parent / "note.md").read_text()
    assert "cost: about $" in said
    assert "the provider's invoice is authoritative" in said
    assert "confirmed gone" in said
    for path in (home / "runs").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert fake.account.api_key.encode() not in content, path
            assert b"jupyter" not in content, path
    assert fake.account.api_key not in said


def test_without_an_installation_the_door_says_the_one_line_that_installs(tmp_path: Path) -> None:
    bare = subprocess.run(
        [sys.executable, "-S", "-I", str(ROOT / "scripts" / "lambda" / "cloud.py"), "session"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert bare.returncode == 2
    assert bare.stderr == "slo-bench is not installed: python3 -m pip install -e .\n"


def test_the_door_is_the_same_command_from_another_directory(tmp_path: Path) -> None:
    door = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "lambda" / "cloud.py"), "session", "--run", "LABEL=x MODEL=m"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert door.returncode == 2
    assert "renting needs --type" in door.stderr
