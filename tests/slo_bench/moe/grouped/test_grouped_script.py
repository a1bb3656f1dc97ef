"""The script for a bug report stands alone: it compiles, says what it would do, and names what is missing."""

from __future__ import annotations

import ast
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from slo_bench.cli import main


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "repro.py"
    words = ["--backend", "flashinfer-grouped-gemm", "--export-script", str(path), "--runs-dir", str(tmp_path / "runs")]
    assert main(["kernels", *words]) == 0
    assert not (tmp_path / "runs").exists()
    return path


def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=script.parent)


def test_it_compiles_and_imports_nothing_of_ours(script: Path) -> None:
    py_compile.compile(str(script), doraise=True)
    tree = ast.parse(script.read_text())
    modules = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    sources = {(node.module or "", node.level) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {level for _, level in sources} == {0}
    roots = {name.partition(".")[0] for name in modules | {module for module, _ in sources}}
    assert roots - {"__future__"} <= {*sys.stdlib_module_names, "torch"}


def test_no_name_of_it_is_defined_twice(script: Path) -> None:
    names = [
        node.name
        for node in ast.parse(script.read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    ]  # fmt: skip
    names += [
        target.id
        for node in ast.parse(script.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    assert len(names) == len(set(names))


def test_a_dry_run_says_the_estimates_the_branches_and_the_idle_ranks(script: Path) -> None:
    done = run(script, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "shipped estimate: 288 rows per expert, normal branch" in done.stdout
    assert "corrected estimate: 5 rows per expert, swapAB branch" in done.stdout
    assert done.stdout.count("(idle)") == 7
    assert "communication between ranks is not part of it" in done.stdout


def test_without_a_gpu_it_says_what_is_missing(script: Path) -> None:
    done = run(script)
    assert done.returncode == 2
    assert done.stderr == "cannot run: no torch with a CUDA GPU: a Hopper card (SM90) is needed, or --dry-run\n"
