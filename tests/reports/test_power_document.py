from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reports.power import PowerSample
from reports.power_document import read_samples, write_samples
from traffic.errors import UsageError

SAMPLE = PowerSample(10.0, "GPU-a", 612.5, "instant", 1234.5, 1755, 3201, 61, 4, 0.98, 1.7e9, 120_000)


def test_samples_come_back_as_they_were_written(tmp_path: Path) -> None:
    samples = (SAMPLE, replace(SAMPLE, at_s=10.1, power_w=None, energy_j=None, event_reasons=None))
    write_samples(tmp_path / "power.parquet", samples)
    assert read_samples(tmp_path / "power.parquet") == samples


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "power.parquet").write_text("no parquet")
    with pytest.raises(UsageError, match="holds no samples of power"):
        read_samples(tmp_path / "power.parquet")
