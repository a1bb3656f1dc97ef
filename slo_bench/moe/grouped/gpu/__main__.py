"""`python -u __main__.py SOCKET`: serves whoever listens on this Unix socket until it hangs up."""

import sys

sys.path.pop(0)  # the files beside this one are no modules of their own

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = Path(__file__).resolve().parent


def _package(name: str, folder: Path) -> ModuleType:
    """A folder as a package under a name that no installed one has."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is no package")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def _serve(address: str) -> int:
    """The conversation is that of the other kernel process; what can be asked is imported by the first request."""
    _package("slo_bench_gpu_worker", _HERE.parents[1] / "gpu_worker")
    _package("slo_bench_grouped", _HERE)
    serving = importlib.import_module("slo_bench_gpu_worker.serving")
    found: list[Any] = []

    def run(name: str, request: dict[str, Any], tell: Any) -> Any:
        if not found:
            found.append(importlib.import_module("slo_bench_grouped.commands").commands(serving.RefusedError))
        return found[0](name, request, tell)

    return int(serving.serve(address, lambda: run))


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
