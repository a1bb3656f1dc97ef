"""Which GPUs' power is a server's: those that it can see, by UUID, since its GPU 0 need not be the driver's (R27)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from slo_bench.hosts.gpu_memory import Gpu, GpuReading, visible_gpus
from traffic.errors import EngineError

ALL = "all"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is known of a server's GPUs before anybody asks the driver.

    visible, order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER of its environment, None where they are not set. named:
    what a user named in their place: UUIDs or their beginnings, the driver's numbers, or "all". dcgm_url: the page of a
    dcgm-exporter, in place of a driver here.
    """

    visible: str | None = None
    order: str | None = None
    named: tuple[str, ...] = ()
    dcgm_url: str | None = None

    def arguments(self) -> list[str]:
        """The same as arguments of the reader."""
        return [json.dumps(asdict(self))]


def choice(arguments: Sequence[str]) -> Choice:
    """The reverse of `Choice.arguments`; without any, all GPUs."""
    values = json.loads(arguments[0]) if arguments else {}
    return Choice(**{**values, "named": tuple(values.get("named", ()))})


def chosen(reading: GpuReading | None, wanted: Choice) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs to read, else none and why."""
    if reading is None:
        return (), "no NVIDIA driver answers on this machine"
    if ALL in wanted.named:
        return reading.gpus, ""
    visible = ",".join(wanted.named) if wanted.named else wanted.visible
    if visible is not None and "MIG-" in visible:
        return (), "the server runs on a part of a GPU (MIG), and only the whole card's power can be read"
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    if wanted.named or wanted.order is not None:
        # Whoever names numbers to us means the driver's.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID" if wanted.named else wanted.order or ""
    try:
        gpus = visible_gpus(reading, env)
    except EngineError as error:
        return (), str(error).replace("CUDA_VISIBLE_DEVICES", "--power-gpu") if wanted.named else str(error)
    return gpus, "" if gpus else "CUDA_VISIBLE_DEVICES hides every GPU from the server"
