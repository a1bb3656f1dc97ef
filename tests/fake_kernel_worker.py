"""A kernel process without a GPU: it speaks the protocol and behaves as a configuration's BLOCK_SIZE_M says."""

import json
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

FACTS = {
    "device": "NVIDIA H200",
    "uuid": None,
    "shared_bytes": 232_448,
    "l2_bytes": 60 << 20,
    "cores": 16,
    "versions": {"vllm": "0.24.0", "torch": "2.11.0", "triton": "3.6.0"},
    "config_folder": "/nowhere/configs",
    "bandwidth_bps": 4.2e12,
}
DIES, HANGS, FAILS, TALKS = 512, 1024, 256, 128


def behave(entry: dict[str, int]) -> str | None:
    if entry["BLOCK_SIZE_M"] == DIES:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if entry["BLOCK_SIZE_M"] == HANGS:
        time.sleep(60)
    return "OutOfResources: shared memory" if entry["BLOCK_SIZE_M"] == FAILS else None


def main(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw") as lines:

            def say(line: dict[str, object]) -> None:
                lines.write(json.dumps(line) + "\n")
                lines.flush()

            for line in lines:
                say(answer(json.loads(line), say))


def answer(request: dict[str, Any], say: Callable[[dict[str, object]], None]) -> dict[str, object]:
    print("a library prints", flush=True)
    name = request["do"]
    if name == "facts":
        return {"answer": FACTS}
    if name == "prepare":
        if request["weight_sets"] > 100:
            return {"refused": "CUDA out of memory: free the GPU"}
        assert all(len(np.load(path)) == each["tokens"] for each in request["batches"] for path in each["draws"])
        return {"answer": {}}
    if name == "compile":
        return {"answer": {"took_s": 1.5, "failure": behave(request["entry"])}}
    made: list[dict[str, object]] = []
    for number, case in enumerate(request["cases"]):
        failure = behave(case["entry"])
        say({"done": number + 1})
        if name == "check":
            made.append({"error": None if failure else 0.03, "failure": failure})
        else:
            made.append({"times_s": [] if failure else [1e-4] * request["rounds"], "failure": failure})
    return {"answer": {"checked" if name == "check" else "timed": made}}


if __name__ == "__main__":
    main(sys.argv[1])
