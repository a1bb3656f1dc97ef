"""The conversation: a line of JSON asks, a line of JSON answers, lines in between say that something moves.

A request is {"do": NAME, ...}. Its answer is {"answer": {...}} or {"refused": "one line"}; before it may come any
number of {"done": N}. Everything that a library prints goes to the log instead: the socket is ours alone. An error that
leaves the GPU in doubt ends the process, its traceback is in the log.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

Tell = Callable[[int], None]
Commands = Callable[[str, dict[str, Any], Tell], dict[str, Any]]


class RefusedError(Exception):
    """A request that cannot be met, and why, in one line; the process goes on."""


def serve(address: str, made: Callable[[], Commands] | None = None) -> int:
    """Answer until the other side hangs up or says that it is the end. Returns the exit code.

    made: what a name does, asked for once the conversation has begun; None: the fused MoE of vLLM.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(address)
        with connection.makefile("rw", encoding="utf-8", newline="\n") as lines:

            def say(line: dict[str, Any]) -> None:
                lines.write(json.dumps(line, allow_nan=False) + "\n")
                lines.flush()

            commands = (made or _commands)()
            for line in lines:
                request = json.loads(line)
                name = request.pop("do")
                if name == "end":
                    break
                try:
                    say({"answer": commands(name, request, lambda done: say({"done": done}))})
                except RefusedError as error:
                    say({"refused": str(error)})
    return 0


def _commands() -> Commands:
    """What a name does. torch and vLLM are imported by the first request, so that a refusal to start is told apart."""
    state: dict[str, Any] = {}

    def run(name: str, request: dict[str, Any], tell: Tell) -> dict[str, Any]:
        if name == "facts":
            from .facts import facts

            return facts(**request)
        if name == "prepare":
            from .layer import GpuLayer

            state.pop("layer", None)  # its memory first
            state["layer"] = GpuLayer(**request)
            return {}
        if name in ("load", "steps"):
            return _of_model(state, name, request, tell)
        if "layer" not in state:
            raise RefusedError("prepare comes first")
        if name == "check":
            from .checking import check

            return {"checked": check(state["layer"], tell=tell, **request)}
        if name == "time":
            from .timing import time_cases

            return {"timed": time_cases(state["layer"], tell=tell, **request)}
        if name == "compile":
            from .compiling import compile_entry

            return compile_entry(state["layer"], **request)
        raise RefusedError(f"there is no command {name!r}")

    return run


def _of_model(state: dict[str, Any], name: str, request: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Steps of a whole model, for which the layer alone is not needed."""
    from .stepping import StepModel, time_steps

    if name == "load":
        state["model"] = StepModel(**request)
        return {}
    if "model" not in state:
        raise RefusedError("load comes first")
    return {"times_s": time_steps(state["model"], tell=tell, **request)}
