"""The page of a dcgm-exporter (Prometheus text) as samples of power, for a server on another machine.

Fields: https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html. Energy is in mJ, memory in MiB,
utilisation in per cent. The exporter asks the driver every 30 s by default (its option -c, in ms), and repeats the same
figures in between; a page that says nothing new is no reading.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException

from prometheus_client.parser import text_string_to_metric_families

from reports.power import PowerSample

LIMIT_S = 5.0

POWER, ENERGY = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_SM_CLOCK, _MEMORY_CLOCK, _HEAT = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_GPU_TEMP"
_USE, _MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
_REASONS = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_MOST = 2.0**53
"""DCGM marks what it does not know by numbers near 2^63, or 2^47 where it counts in floats; energy stays below."""
_BLANK = 2.0**47

Gpus = Mapping[str, Mapping[str, float]]
"""UUID -> field -> value, as on the page."""


def parse(text: str) -> tuple[Gpus, Mapping[str, str], bool]:
    """The whole GPUs of a page, their names, and whether any is split (MIG). Raises ValueError for another text."""
    gpus: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    is_split = False
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            uuid, name = each.labels.get("UUID"), each.name.removesuffix("_total")  # the parser adds it to counters
            if uuid is None or not name.startswith("DCGM_FI_"):
                continue
            if each.labels.get("GPU_I_ID"):
                is_split = True
                continue
            names[uuid] = each.labels.get("modelName", "")
            if 0 <= each.value < (_MOST if name == ENERGY else _BLANK):
                gpus.setdefault(uuid, {})[name] = each.value
    return gpus, names, is_split


def sample(uuid: str, values: Mapping[str, float], *, at_s: float, utc_s: float) -> PowerSample:
    """One GPU of a page. DCGM's power is the driver's usual reading: an average of about a second (R28)."""
    energy_mj, use = values.get(ENERGY), values.get(_USE)
    reasons = next((values[name] for name in _REASONS if name in values), None)
    return PowerSample(
        at_s=at_s,
        uuid=uuid,
        power_w=values.get(POWER),
        power_field="average",
        energy_j=None if energy_mj is None else energy_mj / 1000,
        sm_clock_mhz=_whole(values.get(_SM_CLOCK)),
        memory_clock_mhz=_whole(values.get(_MEMORY_CLOCK)),
        temperature_c=_whole(values.get(_HEAT)),
        event_reasons=_whole(reasons),
        utilization_share=None if use is None else use / 100,
        utc_s=utc_s,
        memory_used_mib=_whole(values.get(_MEMORY)),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def page(url: str) -> str | None:
    """The page's text; None where nobody answers, in LIMIT_S at the latest between two bytes."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:  # noqa: S310 - the option takes http and https only
            content: bytes = answer.read()
    except (OSError, ValueError, HTTPException):  # urllib's own errors are OSErrors
        return None
    return content.decode(errors="replace")


class Page:
    """Reads a page again and again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._last: dict[str, float | None] = {}

    def look(self) -> tuple[Gpus, Mapping[str, str], bool] | None:
        """What the page says now; None where there is none."""
        text = page(self._url)
        try:
            return None if text is None else parse(text)
        except ValueError:
            return None

    def samples(self, uuids: tuple[str, ...]) -> Iterator[PowerSample]:
        """Of the GPUs about which it says something new."""
        at_s = time.monotonic()
        found = self.look()
        for uuid, values in (found[0] if found is not None else {}).items():
            news = values.get(ENERGY, values.get(POWER))
            if uuid in uuids and news != self._last.get(uuid):
                self._last[uuid] = news
                yield sample(uuid, values, at_s=at_s, utc_s=time.time())
