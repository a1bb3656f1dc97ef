"""A kernel process without a GPU: it speaks the protocol and behaves as a configuration's BLOCK_SIZE_M says."""

import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
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
STATE: dict[str, int] = {}
NO_ROOM = 1000
DIES, HANGS, FAILS, TALKS = 512, 1024, 256, 128


def behave(entry: dict[str, int]) -> str | None:
    if entry["BLOCK_SIZE_M"] == DIES:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if entry["BLOCK_SIZE_M"] == HANGS:
        time.sleep(60)
    return "OutOfResources: shared memory" if entry["BLOCK_SIZE_M"] == FAILS else None


def step_s(step: dict[str, Any]) -> float:
    """A step of 200 us and 150 us more for each layer, 50 us less where all tokens are the same."""
    return 200e-6 + STATE["layers"] * (100e-6 if step["is_concentrated"] else 150e-6)


def main(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw") as lines:

            def say(line: dict[str, object]) -> None:
                lines.write(json.dumps(line) + "\n")
                lines.flush()

            for line in lines:
                say(answer(json.loads(line), say))


def may_load(request: dict[str, Any]) -> bool:
    return "model" not in request or config_of(request)["hidden_size"] != NO_ROOM


def config_of(request: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((Path(request["model"]) / "config.json").read_text())
    return config


def of_model(request: dict[str, Any]) -> dict[str, object]:
    if request["do"] == "load":
        STATE["layers"] = config_of(request)["num_hidden_layers"]
        return {}
    return {"times_s": [[step_s(each)] * request["rounds"] for each in request["steps"]]}


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
    if name in ("load", "steps"):
        return {"answer": of_model(request)} if may_load(request) else {"refused": "CUDA out of memory: no room"}
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
