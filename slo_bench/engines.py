"""From options to a host: which engine is meant, and what it needs."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from slo_bench.engine_options import EngineOptions
from slo_bench.hosts import Host
from slo_bench.simulate.answers import ANSWER_SETTINGS, known_answers
from traffic.errors import UsageError
from traffic.randomness import fresh_key
from traffic.step_model import EngineSettings

LEAST_STEP_TOKENS = 2048
"""Of vLLM's defaults for --max-num-batched-tokens when it serves; they grow with the GPU (vllm/engine/arg_utils.py)."""


def simulated_settings(pairs: Sequence[str], base: EngineSettings | None = None) -> EngineSettings:
    """Settings of the simulated engine from NAME=VALUE. Raises UsageError that lists the names.

    What it knows by heart is none of them; see `slo_bench.simulate.answers`.
    """
    settings = EngineSettings() if base is None else base
    kinds = typing.get_type_hints(EngineSettings)
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if name in ANSWER_SETTINGS and equals:
            continue
        if not equals or name not in kinds:
            raise UsageError(f"--simulated {pair}: give NAME=VALUE; names are {', '.join(kinds)}")
        try:
            changes[name] = kinds[name](text)
        except ValueError:
            raise UsageError(f"--simulated {pair}: {text!r} is not {kinds[name].__name__}") from None
    try:
        return dataclasses.replace(settings, **changes)
    except ValueError as error:
        raise UsageError(f"--simulated: {error}") from error


def text_salt(options: EngineOptions) -> int:
    """What this run's prompts are drawn from on a server that somebody else runs: the option, else a fresh number.

    Such a server may hold the prompts of any earlier run in its cache, those of the same command above all (R17).
    Engines on which two arms should get the same text get the same salt.
    """
    return fresh_key() if options.text_salt is None else options.text_salt


def host_for(
    options: EngineOptions,
    *,
    log_path: Path,
    say: Callable[[str], None],
    start: int = 0,
    own_pids: Callable[[], Collection[int]] = frozenset,
) -> Host:
    """The host that the options name. log_path: where an engine that we start writes its log.

    start: how many servers this run used before. A server that somebody else runs adds the salt of its text to it.
    own_pids: processes of this run's other servers, which may hold memory of the same GPU.
    """
    kind = options.engine_kind()
    if kind == "simulated":
        # Imported here, as below: the other engines' libraries stay out of a run that does not use them.
        from slo_bench.hosts.simulated import SimulatedHost

        seed = int(getattr(options, "seed", 0))
        settings, known = simulated_settings(options.simulated), known_answers(options.simulated)
        return SimulatedHost(settings, seed=seed, start=start, known=known)
    if kind == "attached":
        from slo_bench.hosts.attached import AttachedHost

        return AttachedHost(
            options.base_url or "",
            model=options.model,
            api_key=api_key(options),
            headers=dict(_header(text) for text in options.header),
            ca_file=options.ca_file,
            extra_body=json.loads(options.extra_body or "{}"),
            start=start + text_salt(options),
            metrics_urls=options.metrics_url,
        )
    return _vllm(options, log_path=log_path, say=say, start=start, own_pids=own_pids)


def expected_moe_config(options: EngineOptions) -> Path | Literal["default"] | None:
    """What the server's log must prove; a bare name is also looked for in --tuned-moe-dir.

    Raises UsageError for a file that is not there, or is not fit for the server: its log would say so minutes later.
    """
    from slo_bench.hosts.moe_proof import file_faults

    named = options.expect_moe_config
    if named is None:
        return None
    if named == "default":
        return "default"
    path = Path(named).expanduser()
    tuned = options.tuned_moe_dir
    found = next((each for each in (path, *([tuned / path] if tuned is not None else [])) if each.is_file()), None)
    if found is None:
        there = "" if tuned is None else f", neither here nor in {tuned}"
        raise UsageError(f"--expect-moe-config {named}: there is no such file{there}")
    fault = next(file_faults(found, _surely_tokens(options)), None)
    if fault is not None:
        raise UsageError(f"--expect-moe-config: {fault}")
    return found


def _surely_tokens(options: EngineOptions) -> int:
    """A number of tokens that a step of the server may have whatever its defaults are; the log tells the real limit."""
    if options.max_num_batched_tokens is not None:
        return options.max_num_batched_tokens
    is_told = options.server_command is not None or any("batched" in word for word in options.vllm_arg)
    return 1 if is_told else LEAST_STEP_TOKENS


def _vllm(
    options: EngineOptions,
    *,
    log_path: Path,
    say: Callable[[str], None],
    start: int,
    own_pids: Callable[[], Collection[int]],
) -> Host:
    from slo_bench.hosts.gpu_memory import GpuGuard, read_gpus
    from slo_bench.hosts.launch import Way, find_image, template
    from slo_bench.hosts.levers import Levers, engine_arguments
    from slo_bench.hosts.proven import ProvenHost

    levers = Levers(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Levers)})
    way: Way | None = None
    if options.server_command is not None:
        way = template(options.server_command)
    elif options.vllm_image is not None:
        way = find_image(options.vllm_image, os.environ, uses_gpu=read_gpus() is not None)
    return ProvenHost(
        options.model or "",
        expected=expected_moe_config(options),
        engine_args=engine_arguments(levers, options.vllm_arg),
        env=dict(pair.split("=", 1) for pair in options.server_env),
        way=way,
        python=options.vllm_python,
        port=options.port,
        tuned_dir=options.tuned_moe_dir,
        gpus=GpuGuard(min_driver=options.min_driver, count=levers.gpus, own_pids=own_pids),
        log_path=log_path,
        start=start,
        ready_timeout_s=options.ready_timeout,
        extra_body=json.loads(options.extra_body or "{}"),
        on_progress=say,
    )


def confirm(options: EngineOptions, *, is_agreed: bool) -> None:
    """Ask once before loading a host that is not this one. Raises UsageError for a no, or where nobody can answer."""
    from slo_bench.hosts.attached import is_loopback

    if options.base_url is None or is_agreed or is_loopback(options.base_url):
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{options.base_url} is not this machine: give --yes to put load on it")
    sys.stderr.write(f"Put load on {options.base_url}, which is not this machine? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("stopped: no load was sent")


def api_key(options: EngineOptions) -> str | None:
    """The bearer key: the option, else OPENAI_API_KEY."""
    if options.api_key is not None:
        return options.api_key.get_secret_value()
    return os.environ.get("OPENAI_API_KEY") or None


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name, value.strip()
