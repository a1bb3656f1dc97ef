"""The options of `slo-bench cloud`."""

from __future__ import annotations

from pathlib import Path

from pydantic import field_validator, model_validator

from slo_bench.engine_options import option
from slo_bench.options import Options, StringList
from slo_bench.renting.run_text import RunText, read_runs

VLLM_VERSION = "0.31.0"
IMAGE_FAMILY = "lambda-stack-24-04"
RESERVE_MINUTES = 4.0
"""Of every session, for the last fetch and for ending the machine."""

_WHAT, _MACHINE, _LIMITS, _API, _LINK = "what runs", "the machine", "limits", "the provider", "how it is reached"


class ProviderOptions(Options):
    """How the provider is asked."""

    api_key_file: Path | None = option(
        None, "file of mode 0600 with the API key (default: LAMBDA_API_KEY, else ~/.lambda/api_key)", group=_API
    )
    api_base: str | None = option(
        None, "address of the API (default: LAMBDA_API_BASE, else Lambda's own)", group=_API, metavar="URL"
    )
    calls_per_s: float = option(1.0, "calls per second at most; the provider allows 1", group=_API, metavar="N", gt=0)
    launch_every_s: float = option(
        12.0, "seconds between two launches at least; the provider allows 12", group=_API, metavar="S", ge=0
    )
    poll_s: float = option(5.0, "seconds between two looks at the machine", group=_API, metavar="S", gt=0)

    @field_validator("api_key_file")
    @classmethod
    def _at_home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()


class SessionOptions(ProviderOptions):
    """Options of `slo-bench cloud session`."""

    run: StringList = option(
        [],
        "one run, repeatable, in this order: variables of `slo-bench run`; LABEL names its results",
        group=_WHAT,
        metavar="'KEY=VALUE ...'",
    )
    plan: Path | None = option(
        None, "after the runs: a plan of `slo-bench experiment`", group=_WHAT, metavar="PLAN.toml"
    )
    vllm_version: str = option(
        VLLM_VERSION, "vLLM that is installed there, where a run has no VLLM_VERSION", group=_WHAT
    )
    pass_env: StringList = option(
        [], "variable of this shell that jobs there get, like HF_TOKEN; never written down", group=_WHAT, metavar="NAME"
    )
    runs_dir: Path = option(Path("runs"), "where the session's folder is made", group=_WHAT, metavar="DIR")
    fail_fast: bool = option(default=False, description="stop after the first run that fails", group=_WHAT)

    type: str | None = option(None, "what to rent, like gpu_1x_h100_sxm5", group=_MACHINE)
    region: StringList = option(
        [], "region, repeatable, in order of preference (default: any that has one free)", group=_MACHINE
    )
    image_family: str = option(IMAGE_FAMILY, "image that the machine starts from", group=_MACHINE, metavar="FAMILY")
    host: str | None = option(
        None,
        "a machine of your own in place of a rented one: nothing is launched or ended",
        group=_MACHINE,
        metavar="USER@MACHINE",
    )

    max_minutes: float | None = option(
        None,
        "end the machine after this time, whatever runs (needed to rent; own machine: 1440)",
        group=_LIMITS,
        metavar="N",
        gt=0,
    )
    max_usd: float | None = option(None, "end it when it has cost this", group=_LIMITS, metavar="USD", gt=0)
    yes: bool = option(default=False, description="do not ask before renting", group=_LIMITS)

    ssh_key: str | None = option(
        None, "name of a key of the account, or path of its private half", group=_LINK, metavar="KEY"
    )
    ssh_user: str = option("ubuntu", "who logs in on a rented machine", group=_LINK, metavar="USER")
    ssh_port: int | None = option(
        None, "port, with --host (default: as ssh is configured)", group=_LINK, metavar="N", ge=1, le=65535
    )
    ssh_config: str | None = option(
        None, "configuration for ssh, with --host; none: none at all", group=_LINK, metavar="FILE"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> SessionOptions:
        if not self.run and self.plan is None:
            raise ValueError("give a --run 'MODEL=... LABEL=...' or a --plan PLAN.toml")
        if self.host is None:
            needed = {"--type": self.type, "--ssh-key": self.ssh_key, "--max-minutes": self.max_minutes}
            missing = [name for name, value in needed.items() if value is None]
            if missing:
                raise ValueError(f"renting needs {', '.join(missing)}; or --host user@machine for one of your own")
        else:
            rented = {"--type": self.type, "--region": self.region or None, "--max-usd": self.max_usd}
            given = [name for name, value in rented.items() if value is not None]
            if given:
                raise ValueError(f"{', '.join(given)} would change nothing: --host is not rented")
        return self

    @property
    def minutes(self) -> float:
        """The session's limit."""
        return 1440.0 if self.max_minutes is None else self.max_minutes

    def runs(self) -> tuple[RunText, ...]:
        """The runs, checked. Raises UsageError."""
        return read_runs(self.run, self.minutes, RESERVE_MINUTES)

    def request(self) -> dict[str, object]:
        """What is kept to go on with the session; no secret is among it."""
        return self.model_dump(mode="json")


class ListOptions(ProviderOptions):
    """Options of `slo-bench cloud list`."""


class ReapOptions(ProviderOptions):
    """Options of `slo-bench cloud reap`."""

    instance: str | None = option(None, "this machine alone, when it is ours", group=_WHAT, metavar="ID")
    session: str | None = option(None, "the machines of this session, expired or not", group=_WHAT, metavar="NAME")
    yes: bool = option(default=False, description="end them; without it, only say which", group=_WHAT)


class ResumeOptions(ProviderOptions):
    """Options of `slo-bench cloud resume`."""

    session: Path | None = option(
        None, "folder of a session, like runs/slob-...", group=_WHAT, metavar="SESSION", is_positional=True
    )

    @model_validator(mode="after")
    def _names_one(self) -> ResumeOptions:
        if self.session is None:
            raise ValueError("give the session's folder: slo-bench cloud resume runs/slob-...")
        return self
