"""The options of `slo-bench compare`: the design of a comparison, and how two arms are named."""

from __future__ import annotations

import dataclasses
import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, field_validator, model_validator

from slo_bench.config import LABEL, LoadOptions
from slo_bench.engine_options import ENGINE, EngineOptions, option
from slo_bench.engines import simulated_settings
from slo_bench.options import Options, StringList, checked
from traffic.errors import UsageError
from traffic.randomness import fresh_key
from traffic.step_model import EngineSettings

_ARMS, _DESIGN, _RUN = "arms", "design", "run"

Placement = Literal["coresident", "restart", "attached"]

MOST_SHARE = 0.5
"""A resolution or an offset above this is a slip: 1 for 1 %."""

_ADDED = frozenset(("vllm_arg", "simulated", "server_env"))
"""Lists to which a change adds; a later value counts."""

_NOT_CHANGED = {
    "engine": "both arms run on the same kind of engine",
    "base_url": "give --base-url twice",
    "api_key": "a change is written down, and a key must not be",
    "header": "a change is written down, and a header may hold a key",
    "text_salt": "it is drawn for each arm",
}
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


def _share(value: object) -> object:
    """`1%` as 0.01; a plain number is a share."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip().removesuffix("%")) / 100
        except ValueError:
            raise ValueError("give a percentage like 1%") from None
    return value


Share = Annotated[float | None, BeforeValidator(_share)]


class DesignOptions(Options):
    """How two arms are compared, whatever they are."""

    request_rate: float | None = option(
        None, "the rate at which both are measured, requests per second", group=_DESIGN, metavar="RATE", gt=0
    )
    concurrency: int | None = option(
        None,
        "closed loop instead: requests kept in flight; times count from the send",
        group=_DESIGN,
        metavar="N",
        gt=0,
    )
    placement: Placement | None = option(
        None,
        "coresident: all servers up, load takes turns; restart: one server at a time; attached: servers of somebody "
        "else (default: attached with --base-url, coresident for the simulated engine, restart for vLLM)",
        group=_DESIGN,
    )
    instances: int | None = option(
        None,
        "server starts of each arm; three or more before anything is called real (default: 1; restart: 4)",
        group=_DESIGN,
        metavar="N",
        ge=1,
        le=100,
    )
    control: bool = option(
        default=False,
        description="one more server of arm A beside the two: how far two starts of one configuration differ is "
        "measured, and an effect is held against it",
        group=_DESIGN,
    )
    blocks: int | None = option(
        None, "pairs of blocks, one of each arm (default: 6; restart: two per start)", group=_DESIGN, metavar="N", ge=1
    )
    until_resolution: Share = option(
        None,
        "add pairs (restart: starts) until the interval of mean TPOT is no wider than this to each side, like 1%",
        group=_DESIGN,
        metavar="SHARE",
    )
    max_minutes: float | None = option(
        None,
        "begin no pair that would end later (default with --until-resolution: 120)",
        group=_DESIGN,
        metavar="N",
        gt=0,
    )
    order: Literal["abba", "random"] = option(
        "abba", "which arm of a pair runs first: in turn, or drawn from the seed in balance", group=_DESIGN
    )
    start_offset: Share = option(
        None,
        "sd of mean TPOT between starts of one configuration, known from before; single starts cannot measure it",
        group=_DESIGN,
        metavar="SHARE",
    )
    duration: float = option(60.0, "seconds of each block's measured window", group=_DESIGN, metavar="SECONDS", gt=0)
    ramp: float | None = option(
        None,
        "seconds of the same load before it (default: twice the mean end-to-end latency, at least 15)",
        group=_DESIGN,
        metavar="SECONDS",
        ge=0,
    )

    @field_validator("until_resolution", "start_offset")
    @classmethod
    def _is_small(cls, share: float | None) -> float | None:
        if share is not None and not 0 < share <= MOST_SHARE:
            raise ValueError("give a percentage between 0 and 50, like 1%")
        return share


_ONE_LOOP = "give either --request-rate (open loop) or --concurrency (closed loop)"


def loop_fault(design: DesignOptions, load: LoadOptions) -> str | None:
    """What speaks against the loop that a design asks for under this load; None where nothing does."""
    if design.concurrency is None:
        return None
    if design.request_rate is not None:
        return _ONE_LOOP
    if load.load_workers > 1 or load.ray_address is not None:
        return "--load-workers goes with an open loop, --concurrency keeps its requests in one process"
    if load.arrivals != "poisson" or load.workload == "multi-turn":
        return "--concurrency keeps requests in flight: give --request-rate for arrivals or conversations"
    return None


class CompareOptions(DesignOptions, LoadOptions):
    """Options of `slo-bench compare`."""

    base_url: StringList = option(  # type: ignore[assignment]  # two servers here, one elsewhere
        [], "running OpenAI-compatible servers: the first is arm A, the second arm B", group=ENGINE, metavar="URL"
    )
    change: StringList = option(
        [],
        "what is different in arm B, repeatable: any option of the engine, a setting of the simulated engine, or "
        "env.NAME=VALUE; an empty value is the server's default",
        group=_ARMS,
        metavar="NAME=VALUE",
    )
    labels: str = option("A,B", "names of the arms", group=_ARMS, metavar="A,B")
    same_ok: bool = option(
        default=False, description="compare equal arms, or a server with itself: what is found is noise", group=_ARMS
    )
    allow_different_models: bool = option(
        default=False, description="compare arms that serve different models", group=_ARMS
    )
    label: str | None = option(None, "name of the run (default: compare-N)", group=_RUN)
    runs_dir: Path = option(Path("runs"), "where run directories are made", group=_RUN, metavar="DIR")
    json_: bool = option(default=False, description="print effect.json", group=_RUN)
    resume: bool = option(
        default=False, description="go on with the run --label where it stopped; give the same options", group=_RUN
    )
    dry_run: bool = option(default=False, description="print the blocks and the time of load, then stop", group=_RUN)
    yes: bool = option(default=False, description="do not ask before loading a host that is not this one", group=_RUN)

    @field_validator("label")
    @classmethod
    def _one_name(cls, label: str | None) -> str | None:
        if label is not None and not LABEL.fullmatch(label):
            raise ValueError("a label is one name of letters, digits, '.', '_' and '-'")
        return label

    @field_validator("labels")
    @classmethod
    def _two_names(cls, labels: str) -> str:
        names = labels.split(",")
        if len(names) != 2 or not all(LABEL.fullmatch(name) for name in names):  # noqa: PLR2004 - A and B
            raise ValueError("give two names of letters, digits, '.', '_' and '-', like default,tuned")
        if names[0] == names[1]:
            raise ValueError("the arms have the same label")
        return labels

    @model_validator(mode="after")
    def _one_loop(self) -> CompareOptions:
        fault = loop_fault(self, self)
        if self.request_rate is None and self.concurrency is None:
            fault = _ONE_LOOP
        if fault is not None:
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _names_what_goes_on(self) -> CompareOptions:
        if self.resume and self.label is None:
            raise ValueError("--resume needs the --label of the run that goes on")
        return self

    @property
    def arm_labels(self) -> tuple[str, str]:
        """Names of the arms."""
        a, b = self.labels.split(",")
        return a, b

    def engine_kind(self) -> Literal["simulated", "attached", "vllm"]:
        """Which engine both arms run on."""
        return self.arms()[0].engine_kind()

    def arms(self) -> tuple[LoadOptions, LoadOptions]:
        """The options of both arms. Raises UsageError for arms that cannot be compared, or are the same."""
        urls = self.base_url
        if len(urls) > 2:  # noqa: PLR2004 - A and B
            raise UsageError("a comparison has two arms: give --base-url twice at most")
        values = {name: getattr(self, name) for name in LoadOptions.model_fields}
        values |= {"base_url": urls[0] if urls else None}
        a = checked(LoadOptions, values, where="arm A")
        kind = a.engine_kind()
        b = changed(a, self.change)
        if len(urls) > 1:
            b = b.model_copy(update={"base_url": urls[1]})
            if self.metrics_url and b.metrics_url == a.metrics_url:
                raise UsageError("--metrics-url is arm A's: give arm B's as --change metrics_url=URL")
        if b.engine_kind() != kind:
            raise UsageError("both arms run on the same kind of engine")
        self._check(a, b)
        return same_text(a, b) if kind == "attached" else (a, b)

    def _check(self, a: LoadOptions, b: LoadOptions) -> None:
        if not self.same_ok and len(self.base_url) > 1 and _server(self.base_url[0]) == _server(self.base_url[1]):
            raise UsageError(f"both arms are the server {self.base_url[0]}: give two servers, or --same-ok")
        if not self.same_ok and _effective(a) == _effective(b):
            if self.change:
                raise UsageError(
                    f"--change {self.change[0]} changes nothing: arm A has it too; --same-ok compares equals"
                )
            raise UsageError(
                "nothing differs between the arms: give --change NAME=VALUE or a second --base-url, or --same-ok"
            )
        if a.model != b.model and not self.allow_different_models:
            raise UsageError(f"the arms serve different models, {a.model} and {b.model}: --allow-different-models")


def changed(options: LoadOptions, changes: list[str]) -> LoadOptions:
    """The options with NAME=VALUE applied. Raises UsageError for a name that no engine has."""
    values: dict[str, Any] = {name: getattr(options, name) for name in type(options).model_fields}
    for change in changes:
        name, value = _named(change, options)
        if name in _ADDED:
            values[name] = [*values[name], value] if value else []
        elif isinstance(values[name], list):
            values[name] = [value] if value else []
        else:
            values[name] = value or None
    return checked(LoadOptions, values, where="--change")


def _named(change: str, options: LoadOptions) -> tuple[str, str]:
    """The option that a change names, and its value."""
    name, equals, value = change.partition("=")
    if not equals:
        raise UsageError(f"--change {change}: give NAME=VALUE")
    key = name.replace("-", "_")
    if name.startswith("env."):
        key, value = "server_env", f"{name.removeprefix('env.')}={value}"
    if key == "server_env":
        variable = value.partition("=")[0]
        if _SECRET.search(variable):
            raise UsageError(f"--change env.{variable}=...: a change is written down; export it, and both arms have it")
        return key, value
    if key in _NOT_CHANGED:
        raise UsageError(f"--change {name}=...: {_NOT_CHANGED[key]}")
    # First, since vLLM has levers of the same names, and the simulated engine takes none of them.
    if key in EngineSettings.__dataclass_fields__ and options.engine == "simulated":
        return "simulated", f"{key}={value}"
    if key in EngineOptions.model_fields:
        return key, value
    if key in LoadOptions.model_fields:
        raise UsageError(f"--change {change}: the load is the same for both arms, or nothing is compared")
    settings = EngineSettings.__dataclass_fields__ if options.engine == "simulated" else ()
    near = difflib.get_close_matches(key, [*EngineOptions.model_fields, *settings])
    meant = f"; is {' or '.join(near)} meant?" if near else ", and a variable of the server is env.NAME"
    raise UsageError(f"--change {change}: no engine has an option {name!r}{meant}")


def _effective(options: LoadOptions) -> dict[str, object]:
    """What the options come to: the order of settings, and a setting that repeats a default, make no difference."""
    values = options.model_dump()
    values["simulated"] = dataclasses.asdict(simulated_settings(options.simulated))
    values["server_env"] = dict(pair.split("=", 1) for pair in options.server_env)
    return values


def _server(url: str) -> tuple[str, int | None, str]:
    """What makes two base URLs the same server."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    host = (parts.hostname or "").rstrip(".")
    host = "127.0.0.1" if host in ("localhost", "::1") else host
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return host, port, parts.path.rstrip("/").removesuffix("/v1").rstrip("/")


def same_text(a: LoadOptions, b: LoadOptions) -> tuple[LoadOptions, LoadOptions]:
    """Both arms on servers of somebody else: the same text for two servers, and never the same text twice for one."""
    salt = fresh_key() if a.text_salt is None else a.text_salt
    is_one = _server(a.base_url or "") == _server(b.base_url or "")
    return a.model_copy(update={"text_salt": salt}), b.model_copy(update={"text_salt": salt + is_one})
