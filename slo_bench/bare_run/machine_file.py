"""A machine's own configuration, ~/.config/slo-bench/machine.toml: what runs on it whatever a run's environment says.

    engine = "simulated"                # no server: every sweep meets the simulated engine, every search a model
    simulated = ["start_offset_share=0.01"]   # settings of the simulated engine, as `slo-bench sweep --simulated`
    tune = { batch_size = ["1", "64"] } # options of `slo-bench tune` that hold for every search here
    python = "/opt/venv/bin/python"     # has our dependencies (and vLLM): a rented session installs nothing else

Every key may be left out; without the file vLLM is used.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from traffic.errors import UsageError

MACHINE_FILE = Path("~/.config/slo-bench/machine.toml")


class MachineFile(BaseModel):
    """What the file says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["vllm", "simulated"] = "vllm"
    simulated: list[str] = Field(default_factory=list)
    tune: dict[str, Any] = Field(default_factory=dict)
    python: str | None = None

    @property
    def is_simulated(self) -> bool:
        """Whether nothing is measured here."""
        return self.engine == "simulated"


def read_machine_file(path: Path | None = None) -> MachineFile:
    """The file of this machine, or what holds without one. Raises UsageError in one line."""
    path = (path or MACHINE_FILE).expanduser()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return MachineFile(**content)
    except FileNotFoundError:
        return MachineFile()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path} cannot be read: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        known = ", ".join(MachineFile.model_fields)
        said = f"unknown key; keys are {known}" if first["type"] == "extra_forbidden" else first["msg"].lower()
        raise UsageError(f"{path}: {where}: {said}") from None
