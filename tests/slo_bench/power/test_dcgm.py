"""A dcgm-exporter's page as samples: units, blanks, repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_bench.power.choice import Choice
from slo_bench.power.dcgm import Page, parse, sample
from slo_bench.power.reader import NothingToReadError, find_source

PAGE = """\
# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA H200",Hostname="h"} 612.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="NVIDIA H200",Hostname="h"} 79.1
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 1234567890
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",UUID="GPU-bb",modelName="NVIDIA H200"} 9223372036854775792
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 1755
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 61
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 98
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 120000
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 4
DCGM_FI_DEV_MEM_CLOCK{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 140737488355328
process_cpu_seconds_total 12.5
"""


def served(folder: Path, text: str) -> str:
    path = folder / "metrics"
    path.write_text(text)
    return path.as_uri()


def test_units_and_blanks_are_understood() -> None:
    gpus, names, is_split = parse(PAGE)
    assert (list(gpus), names["GPU-aa"], is_split) == (["GPU-aa", "GPU-bb"], "NVIDIA H200", False)
    found = sample("GPU-aa", gpus["GPU-aa"], at_s=1.0, utc_s=2.0)
    assert (found.power_w, found.power_field, found.energy_j) == (612.5, "average", 1234567.89)
    assert (found.sm_clock_mhz, found.memory_clock_mhz, found.temperature_c) == (1755, None, 61)
    assert (found.event_reasons, found.utilization_share, found.memory_used_mib) == (4, 0.98, 120000)
    assert sample("GPU-bb", gpus["GPU-bb"], at_s=1.0, utc_s=2.0).energy_j is None


def test_a_page_that_says_nothing_new_is_no_reading(tmp_path: Path) -> None:
    page = Page(served(tmp_path, PAGE))
    assert [each.uuid for each in page.samples(("GPU-aa",))] == ["GPU-aa"]
    assert list(page.samples(("GPU-aa",))) == []
    served(tmp_path, PAGE.replace("1234567890", "1234568000"))
    assert [each.energy_j for each in page.samples(("GPU-aa",))] == [1234568.0]
    (tmp_path / "metrics").unlink()
    assert list(page.samples(("GPU-aa",))) == []


def test_the_gpus_are_those_that_were_named_else_all(tmp_path: Path) -> None:
    url = served(tmp_path, PAGE)
    assert list(find_source(Choice(dcgm_url=url)).gpus) == ["GPU-aa", "GPU-bb"]
    named = find_source(Choice(named=("GPU-bb",), dcgm_url=url))
    assert (named.name, dict(named.gpus)) == ("DCGM", {"GPU-bb": "NVIDIA H200"})
    assert [each.power_w for each in named.read()] == [79.1]


@pytest.mark.parametrize(
    ("text", "named", "why"),
    [
        (None, (), "gives no page of a dcgm-exporter"),
        ("<html>", (), "gives no page of a dcgm-exporter"),
        ("up 1\n", (), "shows no GPU"),
        (PAGE, ("GPU-cc",), "has no GPU GPU-cc"),
        ('DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa"} 61\n', (), "shows neither DCGM_FI_DEV_POWER_USAGE nor"),
        (f'{PAGE}DCGM_FI_DEV_FB_USED{{UUID="GPU-aa",GPU_I_ID="7"}} 1\n', (), "is split (MIG)"),
    ],
)
def test_a_page_without_power_says_why(text: str | None, named: tuple[str, ...], why: str, tmp_path: Path) -> None:
    url = (tmp_path / "none").as_uri() if text is None else served(tmp_path, text)
    with pytest.raises(NothingToReadError) as fault:
        find_source(Choice(named=named, dcgm_url=url))
    assert why in str(fault.value)
