from __future__ import annotations

from typing import Any

import pytest

from slo_bench.engine_options import EngineOptions
from slo_bench.power.choice import Choice, choice
from slo_bench.power.measuring import PowerSource
from slo_bench.power.source import power_source
from slo_bench.power.telemetry import READER
from traffic.errors import UsageError


def source(**options: Any) -> PowerSource:
    return power_source(EngineOptions(**options))


def wanted(found: PowerSource) -> Choice:
    assert found.command is not None
    assert found.command[: len(READER)] == READER
    return choice(found.command[len(READER) :])


def test_the_simulated_engine_has_no_watts() -> None:
    assert source(engine="simulated") == PowerSource(reason="the engine is simulated")
    with pytest.raises(UsageError, match="draws no power"):
        source(engine="simulated", dcgm_url="http://h:9400/metrics")


def test_a_server_of_ours_is_read_on_the_gpus_that_its_own_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found = source(model="m", server_env=["CUDA_VISIBLE_DEVICES=1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"])
    assert wanted(found) == Choice(visible="1", order="PCI_BUS_ID")
    assert (found.by_memory, found.is_running) == (True, False)
    assert wanted(source(model="m")).visible == "0,1"


def test_a_running_server_is_read_only_where_somebody_says_which_gpus_are_its_own() -> None:
    attached = source(base_url="http://127.0.0.1:8000")
    assert attached.command is None
    assert "--dcgm-url" in attached.reason
    assert "--power-gpu" in attached.reason
    local = source(base_url="http://127.0.0.1:8000", power_gpu=["GPU-aa"])
    assert (wanted(local), local.is_running, local.counts_all) == (Choice(named=("GPU-aa",)), True, False)
    assert source(base_url="http://127.0.0.1:8000", power_gpu=["all"]).counts_all
    with pytest.raises(UsageError, match="use --dcgm-url"):
        source(base_url="http://10.0.0.9:8000", power_gpu=["0"])


def test_a_remote_server_is_read_from_its_exporters_page() -> None:
    found = source(base_url="http://10.0.0.9:8000", dcgm_url="http://10.0.0.9:9400/metrics", power_gpu=["GPU-aa"])
    assert wanted(found) == Choice(named=("GPU-aa",), dcgm_url="http://10.0.0.9:9400/metrics")
    assert not found.by_memory
    with pytest.raises(ValueError, match="address"):
        EngineOptions(base_url="http://h", dcgm_url="file:///etc/passwd")
