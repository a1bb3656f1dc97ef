"""The options that name an engine, say how to start it, and pull its levers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, SecretStr, field_validator

from slo_bench.options import Options, StringList
from traffic.errors import UsageError


def option(
    default: Any,
    description: str,
    *,
    group: str,
    metavar: str | None = None,
    is_positional: bool = False,
    **bounds: Any,
) -> Any:
    """A field with its help text and the group that it stands under; is_positional: it has no flag."""
    extra: dict[str, JsonValue] = {"group": group}
    if is_positional:
        extra["is_positional"] = True
    if metavar is not None:
        extra["metavar"] = metavar
    return Field(default, description=description, json_schema_extra=extra, **bounds)


ENGINE, START, LEVERS, LOAD, POWER = "engine", "start a server", "levers of vLLM", "load", "power and price"


class EngineOptions(Options):
    """Which engine, and how to reach or start it. There is no default engine."""

    model: str | None = option(
        None, "model to serve with vLLM, or with --base-url the served model's name", group=ENGINE
    )
    base_url: str | None = option(None, "attach to a running OpenAI-compatible server", group=ENGINE, metavar="URL")
    engine: Literal["simulated", "attached", "vllm"] | None = option(
        None, "simulated: no server at all; the others follow from --base-url and --model", group=ENGINE
    )
    api_key: SecretStr | None = option(
        None, "bearer key of the server (default: OPENAI_API_KEY); never stored", group=ENGINE
    )
    header: StringList = option([], "further HTTP header, repeatable", group=ENGINE, metavar="'NAME: VALUE'")
    ca_file: Path | None = option(None, "certificate authorities to trust", group=ENGINE, metavar="FILE")
    extra_body: str | None = option(None, "JSON object merged into every request", group=ENGINE, metavar="JSON")
    metrics_url: StringList = option(
        [],
        "where a replica's counts are, repeatable (default: the server's /metrics)",
        group=ENGINE,
        metavar="URL",
    )
    text_salt: int | None = option(
        None,
        "with --base-url: what prompts are drawn from beside --seed (default: a fresh number, since a running server "
        "may have the prompts of earlier runs in its cache; engine.json has it as start)",
        group=ENGINE,
        metavar="N",
        ge=0,
    )
    vllm_python: Path | None = option(
        None, "interpreter whose vLLM is started (default: this one)", group=START, metavar="PATH"
    )
    vllm_arg: StringList = option(
        [], "one argument for vllm serve, repeatable; easier: everything after --", group=START, metavar="ARG"
    )
    vllm_image: str | None = option(
        None, "container image that serves --model, by docker or podman", group=START, metavar="IMAGE"
    )
    server_command: str | None = option(
        None,
        "another server: a command with {port}, {model}, {tuned_dir}, {args}",
        group=START,
        metavar="TEMPLATE",
    )
    server_env: StringList = option(
        [], "environment variable of the server, repeatable", group=START, metavar="NAME=VALUE"
    )
    port: int | None = option(
        None, "port of the server that is started (default: a free one)", group=START, metavar="N", ge=1, le=65535
    )
    min_driver: str | None = option(None, "refuse a GPU driver older than this", group=START, metavar="VERSION")
    tuned_moe_dir: Path | None = option(
        None, "folder of tuned MoE configuration files for the server", group=START, metavar="DIR"
    )
    expect_moe_config: str | None = option(
        None,
        "the MoE configuration that the server's log must prove, else the run is invalid",
        group=START,
        metavar="FILE|default",
    )
    ready_timeout: float = option(
        1200.0, "seconds that a server may take to answer", group=START, metavar="SECONDS", gt=0
    )
    simulated: StringList = option(
        [], "a setting of the simulated engine, repeatable", group=ENGINE, metavar="NAME=VALUE"
    )

    kv_cache_dtype: str | None = option(None, "auto, fp8, ...", group=LEVERS, metavar="DTYPE")
    max_num_seqs: int | None = option(None, "admission limit: requests in the batch", group=LEVERS, metavar="N", gt=0)
    max_num_batched_tokens: int | None = option(None, "tokens per step", group=LEVERS, metavar="N", gt=0)
    enable_prefix_caching: bool | None = option(None, "keep prompts' prefixes", group=LEVERS)
    enable_chunked_prefill: bool | None = option(None, "cut long prompts over steps", group=LEVERS)
    async_scheduling: bool | None = option(None, "schedule the next step during this one", group=LEVERS)
    speculative_config: str | None = option(None, "speculative decoding, a JSON object", group=LEVERS, metavar="JSON")
    tensor_parallel_size: int | None = option(None, "GPUs that share each layer", group=LEVERS, metavar="N", gt=0)
    data_parallel_size: int | None = option(None, "replicas behind one server", group=LEVERS, metavar="N", gt=0)
    enable_expert_parallel: bool | None = option(None, "experts spread over GPUs", group=LEVERS)
    gpu_memory_utilization: float | None = option(
        None, "share of the GPU's memory", group=LEVERS, metavar="SHARE", gt=0, le=1
    )
    kv_cache_memory_bytes: str | None = option(None, "KV cache, 12G for instance", group=LEVERS, metavar="BYTES")
    max_model_len: int | None = option(None, "context limit, tokens", group=LEVERS, metavar="N", gt=0)
    moe_backend: str | None = option(None, "triton, deep_gemm, ...", group=LEVERS, metavar="NAME")

    dcgm_url: str | None = option(
        None, "read power from a dcgm-exporter's page, for a server on another machine", group=POWER, metavar="URL"
    )
    power_gpu: StringList = option(
        [],
        "GPU whose power is the server's: UUID or its beginning, the driver's number, or all; repeatable (default: "
        "those that a server started here uses)",
        group=POWER,
        metavar="GPU",
    )

    @field_validator("tuned_moe_dir", "vllm_python", "ca_file")
    @classmethod
    def _home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()  # a plan's paths meet no shell

    @field_validator("header")
    @classmethod
    def _headers(cls, headers: list[str]) -> list[str]:
        for header in headers:
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:\s*[^\r\n]*", header):
                raise ValueError(f"{header.partition(':')[0]!r} is not 'NAME: VALUE'")
        return headers

    @field_validator("server_env")
    @classmethod
    def _variables(cls, pairs: list[str]) -> list[str]:
        for pair in pairs:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*", pair):
                raise ValueError(f"{pair.partition('=')[0]!r} is not NAME=VALUE")
        return pairs

    @field_validator("dcgm_url")
    @classmethod
    def _page(cls, url: str | None) -> str | None:
        if url is not None and not re.match(r"https?://[^/]", url):
            raise ValueError("give the page's address, like http://gpu-host:9400/metrics")
        return url

    @field_validator("extra_body")
    @classmethod
    def _json_object(cls, text: str | None) -> str | None:
        try:
            value = json.loads(text or "{}")
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError("must be a JSON object")  # noqa: TRY004 - pydantic reports ValueError
        return text

    def engine_kind(self) -> Literal["simulated", "attached", "vllm"]:
        """Which engine the options name. Raises UsageError for none or a contradiction."""
        kind = self._named_engine()
        given = [name for name in self._own_server() if getattr(self, name) not in (None, [])]
        if kind != "vllm" and given:
            flags = ", ".join("--" + name.replace("_", "-") for name in given)
            raise UsageError(f"{flags} would change nothing: only a server that is started here takes it")
        if kind == "simulated" and (self.dcgm_url is not None or self.power_gpu):
            raise UsageError("--dcgm-url and --power-gpu would change nothing: the simulated engine draws no power")
        if kind != "attached" and self.text_salt is not None:
            raise UsageError("--text-salt would change nothing: a server that is started here has seen no prompt")
        return kind

    @classmethod
    def _own_server(cls) -> list[str]:
        """The options that only a server of ours can take."""
        extras = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        return [
            name
            for name, extra in extras.items()
            if isinstance(extra, dict) and extra.get("group") in (START, LEVERS) and name != "ready_timeout"
        ]

    def _named_engine(self) -> Literal["simulated", "attached", "vllm"]:
        if self.engine == "simulated":
            if self.base_url or self.model:
                raise UsageError("--engine simulated takes neither --base-url nor --model")
            return "simulated"
        if self.base_url is not None:
            if self.engine == "vllm":
                raise UsageError("--engine vllm starts its own server; leave out --base-url, or --engine")
            return "attached"
        if self.engine == "attached":
            raise UsageError("--engine attached needs --base-url URL")
        ways = [name for name in ("vllm_python", "vllm_image", "server_command") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise UsageError(f"give one of {', '.join('--' + name.replace('_', '-') for name in ways)}")
        if self.model is not None or self.server_command is not None:
            return "vllm"
        raise UsageError(
            "no engine: give --model M to start vLLM, --base-url URL for a running server, "
            "or --engine simulated to try without one"
        )
