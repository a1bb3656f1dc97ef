"""`python -u __main__.py SOCKET`: serves whoever listens on this Unix socket until it hangs up."""

import sys

sys.path.pop(0)  # the files beside this one are no modules of their own

import importlib.util
from pathlib import Path

_PACKAGE = "slo_bench_gpu_worker"


def _serve(address: str) -> int:
    """Load the package under a name that no installed one has, and serve."""
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        return 1
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    return int(importlib.import_module(f"{_PACKAGE}.serving").serve(address))


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
