"""Where --ray-address cannot work, one line says so; the cluster itself is in `test_ray_cluster`."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest

from slo_bench.cli import main
from slo_bench.compare.options import CompareOptions
from slo_bench.config import ProbeOptions, SweepOptions
from slo_bench.ray_workers import has_ray, ray_nodes
from traffic.errors import UsageError

PROBE = ["probe", "--base-url", "http://127.0.0.1:9", "--request-rate", "5"]


@pytest.mark.parametrize("command", [PROBE, ["sweep", "--model", "m"], ["compare", "--model", "m", "--same-ok"]])
def test_without_ray_one_line_tells_what_to_install(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*command, "--ray-address", "auto"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "--ray-address needs Ray: pip install 'slo-bench[ray]'" in said[0]


def test_without_the_option_nobody_needs_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert SweepOptions(model="m", load_workers=2).ray_address is None


needs_ray = pytest.mark.skipif(not has_ray(), reason="Ray is not installed (slo-bench[ray])")


@needs_ray
@pytest.mark.parametrize("address", ["auto", "head:6379", "10.0.0.1:6379", "[fd00::1]:6379"])
def test_a_cluster_is_the_one_of_this_machine_or_an_address(address: str) -> None:
    assert SweepOptions(model="m", ray_address=address).ray_address == address


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "head:", ":6379", "head:port", ""])
def test_anything_else_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="give auto, or the cluster's HOST:PORT"):
        SweepOptions(model="m", ray_address=address)


def test_what_must_stay_in_one_process_goes_to_no_cluster() -> None:
    with pytest.raises(ValueError, match="the simulated engine lives in this process"):
        SweepOptions(engine="simulated", ray_address="auto")
    if has_ray():
        with pytest.raises(ValueError, match="keeps its requests in one process"):
            ProbeOptions(model="m", concurrency=8, ray_address="auto")
        with pytest.raises(ValueError, match="keeps its requests in one process"):
            CompareOptions(model="m", concurrency=8, ray_address="auto", same_ok=True)


@needs_ray
def test_the_mode_and_the_load_know_the_cluster() -> None:
    from slo_bench.commands import sweep_plan  # noqa: PLC0415 - beside its use
    from slo_bench.compare.command import compare_load  # noqa: PLC0415 - the same

    options = SweepOptions(model="m", ray_address="head:6379", load_workers=3)
    assert (sweep_plan(options).load.ray_address, sweep_plan(options).load.workers) == ("head:6379", 3)
    assert compare_load(options).ray_address == "head:6379"


@needs_ray
def test_a_port_where_nobody_listens_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

        async def use() -> None:
            async with asyncio.timeout(10.0), ray_nodes(address, 2, server_url="http://127.0.0.1:9"):
                pass

        with pytest.raises(UsageError, match=f"no Ray cluster at {address} "):
            asyncio.run(use())
