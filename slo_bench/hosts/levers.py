"""The levers that people pull, by the names that vLLM gives them, and the arguments that they become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

from traffic.errors import UsageError

_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-sc": "--speculative-config",
}
_INSIDE = {"--kernel-config.moe-backend": "--moe-backend"}
"""Levers that vLLM also takes as a part of another option."""


@dataclass(frozen=True, slots=True)
class Levers:
    """What to change of a server; None leaves vLLM's own default.

    kv_cache_dtype: auto, fp8, ... max_num_seqs: the admission limit, in requests. max_num_batched_tokens: per step.
    speculative_config: a JSON object. gpu_memory_utilization: share of the card for this server. kv_cache_memory_bytes:
    with a unit where wanted (12G); it skips the sizing by profiling, which a server beside it would disturb.
    max_model_len: context limit in tokens. moe_backend: triton, deep_gemm, ...
    """

    kv_cache_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    speculative_config: str | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | str | None = None
    max_model_len: int | None = None
    moe_backend: str | None = None

    @property
    def gpus(self) -> int:
        """How many GPUs the server takes."""
        return (self.tensor_parallel_size or 1) * (self.data_parallel_size or 1)


def flag(name: str) -> str:
    """The option that vLLM has for a lever."""
    return "--" + name.replace("_", "-")


def engine_arguments(levers: Levers, args: Sequence[str] = ()) -> tuple[str, ...]:
    """The arguments for vLLM: the levers, then those given as they are.

    Raises UsageError for a lever that is among `args` too: vLLM would take the last one and say nothing. And for a
    speculative_config that is no JSON object.
    """
    if levers.speculative_config is not None:
        _check_object(levers.speculative_config)
    given = {_option(argument) for argument in args if argument.startswith("-")}
    if any(argument.startswith("{") and '"moe_backend"' in argument for argument in args):
        given.add("--moe-backend")  # the JSON form of --kernel-config
    arguments: list[str] = []
    for field in fields(levers):
        value = getattr(levers, field.name)
        if value is None:
            continue
        option = flag(field.name)
        if option in given:
            raise UsageError(f"{option} is given twice, as an option and after --: leave one out")
        if isinstance(value, bool):
            arguments.append(option if value else f"--no-{option[2:]}")
        else:
            arguments += [option, str(value)]
    return (*arguments, *args)


def _option(argument: str) -> str:
    """The option that an argument names, in any of the forms in which vLLM takes it."""
    name = argument.partition("=")[0]
    if not name.startswith("--"):
        return _SHORT.get(name, name)
    name = name.replace("_", "-")
    name = _INSIDE.get(name, name.partition(".")[0])
    return f"--{name[5:]}" if name.startswith("--no-") else name


def _check_object(text: str) -> None:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--speculative-config is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError('--speculative-config must be a JSON object, like {"method": "ngram"}')
