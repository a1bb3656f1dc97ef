"""The modules of `benchmarks/client`, imported as that program imports them: by their bare names, from its folder."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "client"

sys.path.insert(0, str(FOLDER))
try:
    import environments
    import load
    import measuring
    import own_client
    import peer_aiperf
    import peer_genai_bench
    import peer_guidellm
    import peer_inference_perf
    import peer_vllm
    import pinned
    import runs
    import server
    import table
finally:
    sys.path.remove(str(FOLDER))

__all__ = [
    "environments",
    "load",
    "measuring",
    "own_client",
    "peer_aiperf",
    "peer_genai_bench",
    "peer_guidellm",
    "peer_inference_perf",
    "peer_vllm",
    "pinned",
    "runs",
    "server",
    "table",
]
