"""A script for a bug report: the program of the GPU in one file, with the main comparison's inputs, no slo_bench."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from slo_bench.moe.grouped.options import Plan
from slo_bench.moe.grouped.ranks import ranks_of
from slo_bench.moe.grouped.verdict import MOST_APART

_GPU = Path(__file__).with_name("gpu")
_MODULES = ("building", "runner", "measuring", "script")

_TORCH = """\
try:
    import torch
except ModuleNotFoundError:  # --dry-run needs none
    torch = None
"""


def export_script(plan: Plan) -> str:
    """The script's text."""
    settings = _settings(plan)
    bodies = [(_GPU / f"{name}.py").read_text() for name in _MODULES]
    imports = sorted({line for body in bodies for line in _imports(body)} - {"import torch"})
    texts = [(_GPU / name).read_text() for name in ("binding.cu", "headers/nvrtc.h")]
    return "\n".join(
        [
            '"""Times and checks the grouped GEMM of FlashInfer under two estimates of rows per expert.\n',
            "By slo-bench kernels --export-script. Needs Python 3.11, torch, nvcc 12.8, FlashInfer and a Hopper GPU.",
            '"""\n',
            "from __future__ import annotations\n",
            *imports,
            "",
            _TORCH,
            f"SETTINGS = {json.dumps(json.dumps(settings))}",
            f"BINDING = {texts[0]!r}",
            f"NVRTC_HEADER = {texts[1]!r}\n",
            *map(_body, bodies),
            "",
            'if __name__ == "__main__":',
            "    sys.exit(run_script(json.loads(SETTINGS), BINDING, NVRTC_HEADER, sys.argv[1:]))",
            "",
        ]
    )


def _settings(plan: Plan) -> dict[str, object]:
    shape, tokens = plan.shape, plan.tokens
    ranks = {
        routing.name: [each.counts for each in ranks_of(plan.ids(routing, tokens), shape)] for routing in plan.routings
    }
    title = (
        f"Grouped GEMM of FlashInfer, FP8 block scales: {tokens} tokens, top-{shape.top_k}, {shape.experts} experts on "
        f"{shape.ep_size} ranks, H = {shape.hidden}, I = {shape.columns}"
    )
    return {
        "title": title,
        "tokens": tokens,
        "top_k": shape.top_k,
        "hidden": shape.hidden,
        "intermediate": shape.columns,
        "groups": shape.experts // shape.ep_size,
        **{str(source): estimate for source, estimate in plan.estimates(tokens).items()},
        "warm_ups": plan.effort.warm_ups,
        "samples": plan.effort.samples,
        "seed": plan.effort.seed,
        "most_apart": MOST_APART,
        "ranks": ranks,
    }


def _imports(text: str) -> list[str]:
    """The imports of a module, one to a line, that are not of its neighbours."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            found += [f"import {each.name}" for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module != "__future__":
            found += [f"from {node.module} import {each.name}" for each in node.names]
    return found


def _body(text: str) -> str:
    """A module without its docstring and its imports."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        is_docstring = isinstance(node, ast.Expr) and node.lineno == 1
        if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines).strip() + "\n\n"
