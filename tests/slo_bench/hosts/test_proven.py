"""An arm that does not run what its label says is never measured."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slo_bench.hosts import EngineFacts
from slo_bench.hosts.log_facts import log_facts
from slo_bench.hosts.proven import ProvenHost, as_json
from slo_bench.hosts.vllm import VllmHost
from traffic.errors import InvalidMeasurement

LOG = (Path(__file__).resolve().parents[2] / "vllm_samples" / "server.log").read_bytes().decode()
DEFAULT = (
    "(EngineCore pid=7) INFO 06-30 10:00:00 [fp8.py:1] Using TRITON Fp8 MoE backend out of potential backends: "
    "['TRITON'].\n"
    "(EngineCore pid=7) WARNING 06-30 10:00:01 [fused_moe.py:1071] Using default MoE config. Performance might be "
    "sub-optimal! Config file not found at /x/E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8.json\n"
)


class Started(ProvenHost):
    """A host whose server is only its log."""

    def __init__(self, text: str, **settings: object) -> None:
        super().__init__("m", log_path=Path("none"), **settings)  # type: ignore[arg-type]
        self.text = text
        self.left = False

    def log_text(self) -> str:
        return self.text


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def enter(host: Started) -> Started:
        host._facts = EngineFacts(kind="vllm", model="m", max_model_len=1, version=None)
        return host

    async def leave(host: Started, *_: object) -> None:
        host.left = True

    monkeypatch.setattr(VllmHost, "__aenter__", enter)
    monkeypatch.setattr(VllmHost, "__aexit__", leave)


def test_what_the_log_says_is_a_fact_of_the_arm() -> None:
    async def main() -> None:
        async with Started(LOG) as host:
            assert host.facts.version == "0.32.0"
            assert host.facts.details["log"] == as_json(log_facts(LOG))

    asyncio.run(main())


def test_a_mismatch_is_an_invalid_arm_and_the_server_is_stopped() -> None:
    async def main() -> None:
        host = Started(DEFAULT, expected=Path("/tuned/E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"))
        with pytest.raises(InvalidMeasurement, match="does not run the MoE configuration meant"):
            await host.__aenter__()
        assert host.left

    asyncio.run(main())


def test_the_default_is_proven_by_the_warning_of_it() -> None:
    async def main() -> None:
        async with Started(DEFAULT, expected="default") as host:
            assert host.facts.details["log"]

    asyncio.run(main())
