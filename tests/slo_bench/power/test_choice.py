"""Which GPU is the server's, from what its environment says. R27."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.hosts.gpu_memory import Gpu, GpuReading
from slo_bench.power.choice import ALL, Choice, choice, chosen

BUSY, QUIET = Gpu(0, "GPU-0c11aa22", "NVIDIA H200", 40_000), Gpu(1, "GPU-af7b61d8", "NVIDIA H200", 4)
READING = GpuReading("580.95", (BUSY, QUIET))


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [(None, (BUSY, QUIET)), ("1", (QUIET,)), ("1,0", (QUIET, BUSY)), ("GPU-af7b", (QUIET,)), ("0,-1,1", (BUSY,))],
)
def test_what_the_server_sees_is_resolved_to_whole_uuids(visible: str | None, gpus: tuple[Gpu, ...]) -> None:
    assert chosen(READING, Choice(visible=visible)) == (gpus, "")


@pytest.mark.parametrize(
    ("visible", "why"),
    [
        ("MIG-11111111-2222-3333-4444-555555555555", "a part of a GPU (MIG)"),
        ("", "hides every GPU"),
        ("2", "names '2', which is no GPU of this machine"),
        ("GPU-ffff", "names 'GPU-ffff', which is no GPU of this machine"),
    ],
)
def test_what_cannot_be_resolved_has_no_power_and_says_why(visible: str, why: str) -> None:
    gpus, reason = chosen(READING, Choice(visible=visible))
    assert gpus == ()
    assert why in reason


def test_numbers_of_unlike_gpus_mean_nothing_without_their_order() -> None:
    unlike = GpuReading("580.95", (BUSY, Gpu(1, "GPU-b", "NVIDIA L4", 4)))
    assert "CUDA_DEVICE_ORDER" in chosen(unlike, Choice(visible="1"))[1]
    assert [gpu.name for gpu in chosen(unlike, Choice(visible="1", order="PCI_BUS_ID"))[0]] == ["NVIDIA L4"]
    assert [gpu.name for gpu in chosen(unlike, Choice(named=("1",)))[0]] == ["NVIDIA L4"]


def test_what_a_user_names_counts_instead() -> None:
    assert chosen(READING, Choice(visible="0", named=("GPU-af",))) == ((QUIET,), "")
    assert chosen(READING, Choice(visible="0", named=(ALL,))) == ((BUSY, QUIET), "")
    assert chosen(READING, Choice(named=("9",)))[1].startswith("--power-gpu names '9'")


def test_without_a_driver_there_is_nothing_to_read() -> None:
    assert chosen(None, Choice()) == ((), "no NVIDIA driver answers on this machine")


TEXT = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=8)


@settings(max_examples=20)
@given(st.builds(Choice, st.none() | TEXT, st.none() | TEXT, st.lists(TEXT).map(tuple), st.none() | TEXT))
def test_the_reader_understands_what_it_is_told(wanted: Choice) -> None:
    assert choice(wanted.arguments()) == wanted
