#!/usr/bin/env python3
"""The door of the published command: scripts/lambda/cloud.py session ... is slo-bench cloud session ..."""

import sys

sys.path[:] = [place for place in sys.path if not place.rstrip("/").endswith("scripts/lambda")]
# Its own folder is off the path: this file would hide the package `cloud`.

try:
    from slo_bench.cli import main
except ImportError:
    print("slo-bench is not installed: python3 -m pip install -e .", file=sys.stderr)
    sys.exit(2)

sys.exit(main(["cloud", *sys.argv[1:]]))
