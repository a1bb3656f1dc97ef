"""Make slo-bench, and the vLLM that it starts, ready on this machine: `set_up.py FOLDER VLLM_VERSION...`.

Standard library only. In FOLDER/kit lie a wheel and constraints.txt. slo-bench and each vLLM get a virtual environment
of their own, so that neither's pins meet the other's; FOLDER/bin/slo-bench and FOLDER/bin/python start ours. Where
~/.config/slo-bench/machine.toml names an interpreter (python = "PATH"), nothing is installed: the wheel is unpacked
beside it. Where it says engine = "simulated", no vLLM is.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OLDEST = (3, 11)
MACHINE_FILE = Path("~/.config/slo-bench/machine.toml")
PIP_TRIES = 3
SHOWN_LINES = 15


def main(words: Sequence[str]) -> int:
    """The program."""
    begun_s = time.monotonic()
    _with_a_new_python()
    folder, versions = Path(words[0]).absolute(), words[1:]
    machine = machine_file()
    wheel = next((folder / "kit").glob("*.whl"))
    python, path = machine.get("python"), ""
    if python is None:
        python = ours(folder, wheel)
        for version in () if machine.get("engine") == "simulated" else versions:
            vllm(folder, version)
    else:
        path = str(folder / "lib")
        with zipfile.ZipFile(wheel) as content:
            content.extractall(path)
        say(f"{wheel.name} unpacked beside {python}, as machine.toml says; nothing else is installed")
    launchers(folder, os.path.expanduser(str(python)), path)  # noqa: PTH111 -- a link to an interpreter stays one
    said = subprocess.run([folder / "bin" / "slo-bench", "--version"], capture_output=True, text=True, check=False)
    if said.returncode:
        raise SystemExit(
            f"slo-bench does not start on the machine: {(said.stderr.splitlines() or ['no word came'])[-1]}"
        )
    say(f"{said.stdout.strip()} is ready; took {time.monotonic() - begun_s:.0f} s")
    return 0


def machine_file() -> Mapping[str, Any]:
    """This machine's own configuration."""
    import tomllib  # noqa: PLC0415 -- not before this Python is new enough

    path = MACHINE_FILE.expanduser()
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: {error}") from None


def ours(folder: Path, wheel: Path) -> str:
    """An environment with slo-bench; its packages are those of the computer that sent us, as far as they fit here."""
    python = environment(folder / "venv")
    pinned = ["--constraint", str(folder / "kit" / "constraints.txt"), str(wheel)]
    if not pip(python, pinned, is_needed=False):
        say("the pinned versions do not fit this machine: the newest that do are installed")
        pip(python, [str(wheel)])
    return str(python)


def vllm(folder: Path, version: str) -> None:
    """An environment with vLLM. What it compiles at run time needs the headers of Python."""
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        packages("python3-dev", "gcc", "g++")
    say(f"installing vLLM {version}")
    pip(environment(folder / f"vllm-{version}"), [f"vllm=={version}"])


def environment(place: Path) -> Path:
    """The interpreter of a new virtual environment."""
    if importlib.util.find_spec("ensurepip") is None:
        packages("python3-venv")
    run([sys.executable, "-m", "venv", "--clear", str(place)], f"no virtual environment could be made in {place}")
    return place / "bin" / "python"


def pip(python: Path, words: Sequence[str], *, is_needed: bool = True) -> bool:
    """Install; whether it worked. A download that broke off is tried again."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
    for attempt in range(PIP_TRIES if is_needed else 1):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == 0:
            return True
        sys.stdout.write("".join(f"{line}\n" for line in done.stdout.splitlines()[-SHOWN_LINES:]))
        time.sleep(attempt)
    if is_needed:
        raise SystemExit(f"pip could not install {words[-1]}: see the log of this job")
    return False


def packages(*names: str) -> None:
    """Install packages of Ubuntu; at the first boot its own updates hold the lock for a while."""
    if shutil.which("apt-get") is None:
        raise SystemExit(f"this machine lacks {', '.join(names)}: install them")
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    run([*apt, "update"], "apt-get update failed")
    run([*apt, "install", "-y", "--no-install-recommends", *names], f"apt-get could not install {', '.join(names)}")


def launchers(folder: Path, python: str, path: str) -> None:
    """FOLDER/bin/python and FOLDER/bin/slo-bench."""
    (folder / "bin").mkdir(exist_ok=True)
    environment_ = f"export PYTHONPATH={shlex.quote(path)}\n" if path else ""
    served = f"{shlex.quote(str(folder))}/vllm-$VLLM_VERSION/bin/python"
    default = (
        f'if [ -z "$SLO_BENCH_VLLM_PYTHON" ] && [ -n "$VLLM_VERSION" ] && [ -x {served} ]; then\n'
        f"    export SLO_BENCH_VLLM_PYTHON={served}\nfi\n"
    )
    for name, before, module in (("python", "", ""), ("slo-bench", default, " -m slo_bench")):
        file = folder / "bin" / name
        file.write_text(f'#!/bin/sh\n{before}{environment_}exec {shlex.quote(python)}{module} "$@"\n')
        file.chmod(0o755)


def run(command: Sequence[str], fault: str) -> None:
    """Run a program; its last words and `fault` where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.stdout.write("".join(f"{line}\n" for line in done.stdout.splitlines()[-SHOWN_LINES:]))
        raise SystemExit(fault)


def say(line: str) -> None:
    """A line for the log."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _with_a_new_python() -> None:
    """Become a Python that is new enough, where the machine has one."""
    if sys.version_info >= OLDEST:
        return
    for minor in (13, 12, 11):
        found = shutil.which(f"python3.{minor}")
        if found is not None:
            os.execv(found, [found, *sys.argv])  # noqa: S606 -- the same program under a newer Python
    raise SystemExit(
        "the machine has no Python 3.11 or newer: choose an image of Ubuntu 24.04, like lambda-stack-24-04"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
