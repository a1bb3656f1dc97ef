"""`python -m slo_bench`, also from a folder that holds other packages named cloud, reports or traffic."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # -m puts the working folder first on the path: its packages would stand in front of ours.
    here = Path.cwd()
    home = Path(__file__).resolve().parent.parent
    sys.path[:] = [entry for entry in sys.path if home == here or Path(entry or ".").resolve() != here]
    from slo_bench.cli import main

    sys.exit(main())
