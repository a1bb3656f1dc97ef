"""The names of vLLM's MoE files, what is in them, and which entry runs."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.hosts.moe_proof import name_differences
from slo_bench.moe.config_files import (
    ConfigFile,
    FileKey,
    Version,
    file_name,
    nearest_size,
    parse_name,
    parse_version,
    rank_names,
    read_config,
    refined_block,
    shipped_or_tuned,
    write_config,
)
from slo_bench.moe.shape import MoeModel, MoeShape, Quantisation
from traffic.errors import UsageError

BLOCKS = Quantisation("fp8_w8a8", (128, 128))
QWEN3 = MoeModel(128, 768, 2048, 8, BLOCKS)
H100 = "NVIDIA H100 80GB HBM3"
NOW: Version = (0, 32)
ENTRY = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}
RELEASES: list[Version] = [(0, 20), (0, 24), (0, 31), (0, 32), (1, 0)]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    ("quantisation", "ranks", "is_expert_parallel", "name"),
    [
        (BLOCKS, 1, False, "E=128,N=768,{},dtype=fp8_w8a8,block_shape=[128,128].json"),
        (Quantisation(), 1, False, "E=128,N=768,{}.json"),
        (Quantisation(), 4, False, "E=128,N=192,{}.json"),
        (Quantisation(), 4, True, "E=32,N=768,{}.json"),
    ],
)
def test_r19_the_name_is_the_one_that_the_server_looks_for(
    quantisation: Quantisation, ranks: int, is_expert_parallel: bool, name: str, version: Version
) -> None:
    shape = QWEN3.shape(ranks=ranks, is_expert_parallel=is_expert_parallel)
    assert file_name(shape, quantisation, H100, version) == name.format("device_name=NVIDIA_H100_80GB_HBM3")


def test_r19_four_bit_weights_are_named_by_their_real_columns_not_by_the_packed_ones() -> None:
    shape = MoeShape(128, 256, 2048, 8)
    name = file_name(shape, Quantisation("int4_w4a16", (0, 128)), "NVIDIA H20", NOW)
    assert name == "E=128,N=256,device_name=NVIDIA_H20,dtype=int4_w4a16.json"
    tuned = name.replace("N=256", "N=128")
    assert name_differences(name, tuned) == {"N": ("128", "256")}


@pytest.mark.parametrize(
    ("near_miss", "part"),
    [
        ("E=128,N=768,device_name=NVIDIA_H100,dtype=fp8_w8a8,block_shape=[128,128].json", "device_name"),
        ("E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128, 128].json", "block_shape"),
        ("E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3,dtype=bf16,block_shape=[128,128].json", "dtype"),
    ],
)
def test_r19_near_misses_seen_in_public_are_told_by_the_part_that_differs(near_miss: str, part: str) -> None:
    asked = file_name(QWEN3.shape(), BLOCKS, H100, NOW)
    differing = name_differences(asked, near_miss)
    assert differing is not None
    assert list(differing) == [part]


@pytest.mark.parametrize(
    ("device", "old", "new"),
    [
        ("NVIDIA H200", "NVIDIA_H200", "NVIDIA_H200"),
        ("NVIDIA H200 NVL", "NVIDIA_H200", "NVIDIA_H200"),
        ("NVIDIA GH200 480GB", "NVIDIA_GH200_480GB", "NVIDIA_GH200_480GB"),
        ("NVIDIA H20-3e", "NVIDIA_H20-3e", "NVIDIA_H20-3e"),
        ("NVIDIA RTX PRO/6000", "NVIDIA_RTX_PRO/6000", "NVIDIA_RTX_PRO_6000"),
        ("NVIDIA  B200", "NVIDIA__B200", "NVIDIA_B200"),
    ],
)
def test_a_device_is_spelt_as_the_release_spells_it(device: str, old: str, new: str) -> None:
    shape = QWEN3.shape()
    assert f"device_name={old}," in file_name(shape, BLOCKS, device, (0, 24))
    assert f"device_name={new}," in file_name(shape, BLOCKS, device, (0, 31))


def test_blocks_are_refined_where_a_rank_has_no_whole_ones() -> None:
    shape = QWEN3.shape(ranks=4)
    assert file_name(shape, BLOCKS, "NVIDIA H200", NOW).endswith("dtype=fp8_w8a8,block_shape=[64,64].json")
    with pytest.raises(UsageError, match="no whole FP8 blocks"):
        file_name(shape, BLOCKS, "NVIDIA H200", (0, 24))
    with pytest.raises(UsageError, match="not known"):
        file_name(shape, BLOCKS, "NVIDIA H200", (0, 28))


@pytest.mark.parametrize("version", RELEASES)
def test_blocks_finer_than_32_are_no_blocks(version: Version) -> None:
    with pytest.raises(UsageError, match="no whole FP8 blocks"):
        file_name(MoeShape(8, 144, 2048, 2, slices=2), BLOCKS, H100, version)


def test_a_release_between_two_rules_is_named_where_they_agree() -> None:
    assert file_name(QWEN3.shape(), BLOCKS, H100, (0, 28)) == file_name(QWEN3.shape(), BLOCKS, H100, NOW)
    with pytest.raises(UsageError, match="not known"):
        file_name(QWEN3.shape(), BLOCKS, "A/B", (0, 28))
    with pytest.raises(UsageError, match=r"before 0\.20"):
        file_name(QWEN3.shape(), BLOCKS, H100, (0, 19))


def test_ranks_with_uneven_experts_look_for_two_files() -> None:
    shape = MoeShape(130, 768, 2048, 8, ep_size=4)
    names = rank_names(shape, Quantisation(), "NVIDIA H20", NOW)
    assert [name.partition(",")[0] for name in names] == ["E=33", "E=32"]


@settings(max_examples=30)
@given(st.integers(1, 64), st.sampled_from([(128, 128), (64, 128), (128, 64)]), st.integers(1, 8))
def test_refined_blocks_divide_everything_that_they_must(columns: int, block: tuple[int, int], slices: int) -> None:
    shape = MoeShape(8, 16 * columns, 4096, 2, slices=slices)
    finer = refined_block(block, shape)
    if finer is not None:
        assert block[0] % finer[0] == block[1] % finer[1] == shape.columns % finer[0] == 0
        assert min(finer) >= 32


def test_a_name_is_read_back_to_what_made_it() -> None:
    name = file_name(QWEN3.shape(), BLOCKS, H100, NOW)
    assert parse_name(name) == FileKey(128, 768, "NVIDIA_H100_80GB_HBM3", BLOCKS)
    assert parse_name("E=8,N=64,device_name=cpu.json") == FileKey(8, 64, "cpu", Quantisation())
    for other in ("config.json", name.replace("128,128", "128, 128"), name.replace("fp8_w8a8", "bf16")):
        assert parse_name(other) is None


@pytest.mark.parametrize(
    ("text", "version"), [("0.24.0", (0, 24)), ("v0.31.1rc1.dev3+cu129", (0, 31)), ("1.0", (1, 0)), ("0.32", (0, 32))]
)
def test_a_version_is_read_from_what_vllm_prints(text: str, version: Version) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "main", "0", "v.24"])
def test_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no version of vLLM"):
        parse_version(text)


def test_the_nearest_size_runs_however_far_and_the_earlier_one_of_two() -> None:
    config = ConfigFile({96: {"num_warps": 4}, 1024: {"num_warps": 8}})
    assert config.nearest(1) == {"num_warps": 4}
    assert config.nearest(8192) == {"num_warps": 8}
    assert nearest_size([24, 16], 20) == 24
    assert nearest_size([16, 24], 20) == 16
    with pytest.raises(UsageError, match="no batch size"):
        ConfigFile({}).nearest(1)


JSON_VALUES = st.one_of(st.integers(0, 512), st.booleans(), st.text(max_size=4), st.none())
ENTRIES = st.dictionaries(st.text(min_size=1, max_size=12), JSON_VALUES, min_size=1, max_size=4)


@given(
    st.dictionaries(st.integers(1, 10_000), ENTRIES, max_size=4),
    st.none() | st.text(max_size=8),
    st.dictionaries(st.sampled_from(["device", "note", "0"]), JSON_VALUES, max_size=2),
)
@settings(max_examples=15)
def test_what_is_written_is_read_back_with_all_that_is_not_known(
    tmp_path_factory: pytest.TempPathFactory,
    entries: dict[int, dict[str, object]],
    triton: str | None,
    other: dict[str, object],
) -> None:
    path = tmp_path_factory.mktemp("moe") / "file.json"
    config = ConfigFile(entries, triton, other)
    write_config(path, config)
    back = read_config(path)
    assert back == config
    assert list(back.entries) == list(entries)


def test_a_file_is_laid_out_as_by_the_tuner_of_vllm(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_config(path, ConfigFile({1: {**ENTRY, "waves_per_eu": 2}}, "3.6.0"))
    text = path.read_text()
    assert list(json.loads(text)) == ["triton_version", "1"]
    assert text.startswith('{\n    "triton_version": "3.6.0",\n    "1": {\n        "BLOCK_SIZE_M": 16,')


def test_r20_sizes_that_a_broken_tune_finished_are_kept_and_the_missing_ones_named(tmp_path: Path) -> None:
    path, nine = tmp_path / "file.json", (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
    write_config(path, ConfigFile(dict.fromkeys(nine[:4], ENTRY), "3.6.0"))
    kept = read_config(path)
    assert kept.missing(nine) == nine[4:]
    done = kept.with_entries({size: {**ENTRY, "num_warps": 8} for size in nine[:1:-1]})
    assert list(done.entries) == list(nine)
    assert (done.entries[16], done.entries[64]) == (ENTRY, {**ENTRY, "num_warps": 8})
    assert done.missing(nine) == ()


@pytest.mark.parametrize("content", [None, '{"1": {"BLOCK_SIZE_M": 16, "BLO', "[]", "[" * 100_000])
def test_r20_no_file_and_half_a_file_are_refused_in_one_line(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=r"file\.json") as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_the_tuned_folder_is_looked_into_before_the_shipped_one(tmp_path: Path) -> None:
    tuned, shipped = tmp_path / "tuned", tmp_path / "shipped"
    for folder in (tuned, shipped):
        folder.mkdir()
    (shipped / "a.json").write_text("{}")
    assert shipped_or_tuned("a.json", [tuned, shipped]) == shipped / "a.json"
    (tuned / "a.json").write_text("{}")
    assert shipped_or_tuned("a.json", [tuned, shipped]) == tuned / "a.json"
    assert shipped_or_tuned("b.json", [tuned, shipped]) is None
