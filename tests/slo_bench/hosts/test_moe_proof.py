"""Proof of the MoE configuration, on log lines built from the wordings that vLLM 0.20.2 to 0.32.0 share."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.hosts.log_facts import LogFacts, log_facts
from slo_bench.hosts.moe_proof import USUAL_SIZES, moe_faults, name_differences

SHIPPED = "/site/vllm/model_executor/layers/fused_moe/configs"
H100 = "NVIDIA_H100_80GB_HBM3"
FP8 = f"E=128,N=768,device_name={H100},dtype=fp8_w8a8,block_shape=[128,128].json"
FOLDER = "VLLM_TUNED_CONFIG_FOLDER"
TRITON = "Using TRITON Fp8 MoE backend out of potential backends: ['FLASHINFER_CUTLASS', 'TRITON']."
ENTRY = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4}
# With FP8 above, the table of field report R19: what vLLM looks for when it serves Qwen3-30B-A3B on an H100.
BF16 = f"E=128,N=768,device_name={H100}.json"
BF16_TP4 = f"E=128,N=192,device_name={H100}.json"
BF16_EP4 = f"E=32,N=768,device_name={H100}.json"


def server(*messages: str, version: str = "0.24.0", process: str = "EngineCore", pid: int = 310) -> str:
    lines = [f"Initializing a V1 LLM engine (v{version}) with config: model='m'", *messages]
    return "".join(f"({process} pid={pid}) INFO 12-01 10:00:00 [x.py:1] {message}\n" for message in lines)


def facts(*parts: str) -> LogFacts:
    return log_facts("".join(parts) + "INFO:     Application startup complete.\n")


def read(path: Path | str) -> str:
    return f"Using configuration from {path} for MoE layer."


def missed(*paths: Path | str) -> str:
    where = ", ".join(map(str, paths))
    return f"Using default MoE config. Performance might be sub-optimal! Config file not found at {where}"


MISSED = missed(f"{SHIPPED}/{FP8}")


def ran(*messages: str) -> LogFacts:
    return facts(server(TRITON, *messages))


def ran_on_two(first: str, second: str) -> LogFacts:
    return facts(server(TRITON, first, process="Worker_TP0"), server(second, process="Worker_TP8", pid=9))


def tuned(folder: Path, name: str = FP8, sizes: Iterable[object] = USUAL_SIZES) -> Path:
    path = folder / name
    path.write_text(json.dumps({"triton_version": "3.6.0", **{str(size): ENTRY for size in sizes}}))
    return path


def only(expected: Path | Literal["default"], found: LogFacts, env: Mapping[str, str] | None = None) -> str:
    """The one fault that there is."""
    faults = moe_faults(expected, found, {} if env is None else env)
    assert len(faults) == 1, faults
    assert "\n" not in faults[0]
    return faults[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A tuned file under the right name."""
    return tuned(tmp_path)


class TestProven:
    def test_a_file_that_was_read_by_triton(self, tmp_path: Path, path: Path) -> None:
        assert moe_faults(path, ran(read(path)), {FOLDER: str(tmp_path)}) == ()

    def test_a_default_with_and_without_a_folder(self) -> None:
        assert moe_faults("default", ran(MISSED), {}) == ()
        assert moe_faults("default", ran(missed(f"/tuned/{FP8}", f"{SHIPPED}/{FP8}")), {FOLDER: "/tuned"}) == ()

    @pytest.mark.parametrize("name", ["BATCHED_TRITON", "Triton"])
    def test_triton_by_its_other_names(self, path: Path, name: str) -> None:
        assert moe_faults(path, facts(server(TRITON.replace("TRITON", name, 1), read(path))), {}) == ()

    def test_a_link_to_the_folder_is_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        path = tuned(tmp_path / "real")
        (tmp_path / "link").symlink_to(tmp_path / "real")
        found = ran(read(tmp_path / "link" / FP8))
        assert moe_faults(path, found, {FOLDER: str(tmp_path / "link")}) == ()

    def test_lora_looks_for_names_of_its_own_beside_it(self, path: Path) -> None:
        lora = missed(f"{SHIPPED}/E=128,N=768,device_name={H100},dtype=fp8_w8a8.json")
        beside = ran(read(path), lora)
        elsewhere = facts(server(TRITON, read(path)), server(lora, process="EngineCore_DP1", pid=311))
        assert moe_faults(path, beside, {}) == moe_faults(path, elsewhere, {}) == ()

    def test_vllm_before_0_20_names_no_backend(self, path: Path) -> None:
        assert moe_faults(path, facts(server(read(path), version="0.8.5")), {}) == ()
        assert "the log names no MoE backend, as vLLM 0.24.0 does" in only(path, facts(server(read(path))))
        assert "the log names no MoE backend" in only("default", facts(server(MISSED)))


class TestBackend:
    @pytest.mark.parametrize("name", ["DEEPGEMM", "FLASHINFER_CUTLASS", "MARLIN", "CPU"])
    def test_another_one_is_named(self, name: str) -> None:
        found = facts(server(TRITON.replace("TRITON", name, 1)))
        assert f"the Fp8 MoE backend of EngineCore is {name}, which reads no tuned file" in only("default", found)

    def test_a_file_that_another_models_layers_read_proves_nothing(self, path: Path) -> None:
        draft = "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN']."
        assert "the NvFp4 MoE backend" in only(path, ran(draft, read(path)))


class TestNeitherLine:
    def test_it_is_no_proof_of_anything(self, tmp_path: Path) -> None:
        text = "the log says neither which MoE file was used nor that the default was: another backend, batch-invariant"
        assert text in only("default", ran())
        assert text in only(tuned(tmp_path), facts(server()))

    @pytest.mark.parametrize("env", [{"VLLM_LOGGING_LEVEL": "WARNING"}, {"VLLM_CONFIGURE_LOGGING": "0"}])
    def test_a_level_that_hides_it_is_named(self, env: dict[str, str]) -> None:
        assert "hides such lines; unset it" in only("default", facts(), env)

    def test_a_log_that_ends_too_early_is_named(self) -> None:
        assert "nor that the server got ready: keep its log" in only("default", log_facts(server(TRITON)))

    def test_batch_invariant_mode_is_the_reason(self) -> None:
        fault = only("default", ran(), {"VLLM_BATCH_INVARIANT": "1"})
        assert fault.startswith("VLLM_BATCH_INVARIANT=1 makes vLLM read no MoE file")
        found = ran(MISSED)
        assert moe_faults("default", found, {"VLLM_BATCH_INVARIANT": "0"}) == ()


class TestWrongFile:
    def test_the_shipped_one_of_the_same_name(self, tmp_path: Path, path: Path) -> None:
        remedy = f"start the server with {FOLDER}={tmp_path}, where it looks first"
        fault = only(path, ran(read(f"{SHIPPED}/{FP8}")))
        assert fault == f"EngineCore used the file of that name in {SHIPPED}: {remedy}"

    def test_one_of_another_name_is_compared_with_the_folder(self, tmp_path: Path) -> None:
        path = tuned(tmp_path, BF16)
        fault = only(path, ran(read(f"{SHIPPED}/{FP8}")))
        assert f"EngineCore used {SHIPPED}/{FP8}: it looked for {FP8}; in {tmp_path}, {path.name} has " in fault
        assert "dtype none instead of fp8_w8a8, block_shape none instead of [128,128]: tune with the server's" in fault

    def test_any_file_when_the_default_was_meant(self, tmp_path: Path, path: Path) -> None:
        fault = only("default", ran(read(path)), {FOLDER: str(tmp_path)})
        assert fault == f"EngineCore used {path} although the default was meant: unset VLLM_TUNED_CONFIG_FOLDER"
        fault = only("default", ran(read(f"{SHIPPED}/{FP8}")))
        assert fault.endswith("ships a file for the shape; take it out of reach, in an installation of its own")


class TestDefaultInPlaceOfAFile:
    def test_the_folder_was_not_given(self, tmp_path: Path) -> None:
        fault = only(tuned(tmp_path), ran(MISSED))
        assert fault == (
            f"EngineCore ran the default configuration: it looked for that name in {SHIPPED}: start the server with "
            f"VLLM_TUNED_CONFIG_FOLDER={tmp_path}"
        )

    def test_the_folder_points_elsewhere(self, tmp_path: Path) -> None:
        found = ran(missed(f"~/moe-tuned/{FP8}", f"{SHIPPED}/{FP8}"))
        faults = moe_faults(tuned(tmp_path), found, {FOLDER: "~/moe-tuned"})
        tilde = "~/moe-tuned (vLLM does not expand ~) is not the folder of the file: start the server with"
        assert f"in ~/moe-tuned and {SHIPPED} (vLLM does not expand ~): start" in faults[0]
        assert faults[1] == f"VLLM_TUNED_CONFIG_FOLDER={tilde} VLLM_TUNED_CONFIG_FOLDER={tmp_path}"

    def test_the_file_came_too_late_or_is_not_there(self, tmp_path: Path) -> None:
        path = tmp_path / FP8
        found = ran(missed(path, f"{SHIPPED}/{FP8}"))
        absent, unreadable = moe_faults(path, found, {})
        assert absent.endswith(f" default configuration: {path} does not exist; put the file there before the start")
        assert unreadable == f"{path} cannot be read (no such file or directory): name the tuned file"
        assert "it was written after the start, or the server sees another file system" in only(tuned(tmp_path), found)

    def test_a_line_that_was_cut_names_nothing(self, tmp_path: Path) -> None:
        found = ran("Using default MoE config. Performance might")
        assert "its log line does not say what it looked for" in only(tuned(tmp_path), found)

    def test_workers_that_say_the_same_are_one_line(self, path: Path) -> None:
        assert only(path, ran_on_two(MISSED, MISSED)).startswith("Worker_TP0, Worker_TP8 ran the default")


class TestR19:
    """The name asked for, compared with what a tuner left in the folder."""

    @pytest.mark.parametrize("name", [FP8, BF16, BF16_TP4, BF16_EP4])
    def test_each_servings_own_name_is_found(self, tmp_path: Path, name: str) -> None:
        path = tuned(tmp_path, name)
        assert moe_faults(path, ran(read(path)), {}) == ()
        assert name_differences(name, path.name) == {}

    @pytest.mark.parametrize(
        ("asked", "present", "difference", "remedy"),
        [
            (FP8, BF16, "dtype none instead of fp8_w8a8", "server's quantisation"),
            (BF16_TP4, BF16, "N 768 instead of 192", "tensor-parallel and expert-parallel sizes"),
            (BF16_EP4, BF16_TP4, "E 128 instead of 32, N 192 instead of 768", "expert-parallel sizes"),
            (FP8, FP8.replace(H100, "NVIDIA_H100"), f"NVIDIA_H100 instead of {H100}", "on this very GPU"),
            (FP8, FP8.replace(H100, "NVIDIA_H100_PCIe"), f"NVIDIA_H100_PCIe instead of {H100}", "on this very GPU"),
            (FP8, FP8.replace("8,1", "8, 1"), "block_shape [128, 128] instead of [128,128]", "give it that name"),
            (BF16, BF16.replace(".json", ",dtype=bf16.json"), "dtype bf16 instead of none", "give it that name"),
        ],
    )
    def test_a_near_miss_is_spelled_out(
        self, tmp_path: Path, asked: str, present: str, difference: str, remedy: str
    ) -> None:
        path = tuned(tmp_path, present)
        fault = only(path, ran(missed(tmp_path / asked, f"{SHIPPED}/{asked}")))
        assert f"it looked for {asked}; in {tmp_path}, {present} has " in fault
        assert difference in fault
        assert remedy in fault.rpartition(": ")[2]

    def test_a_neighbouring_device_is_another(self) -> None:
        for asked, present in (("NVIDIA_H20-3e", "NVIDIA_H20"), ("NVIDIA_H200", "NVIDIA_H200_NVL")):
            differing = name_differences(FP8.replace(H100, asked), FP8.replace(H100, present))
            assert differing == {"device_name": (present, asked)}

    def test_the_int4_tuner_that_halved_n(self) -> None:
        asked, present = (f"E=128,N={n},device_name={H100},dtype=int4_w4a16.json" for n in (256, 128))
        assert name_differences(asked, present) == {"N": ("128", "256")}

    def test_the_nearest_of_many_files_are_shown(self, tmp_path: Path) -> None:
        path = tuned(tmp_path, BF16)
        near = FP8.replace(H100, "NVIDIA_H100")
        for name in (near, FP8.replace("128", "64"), FP8.replace("768", "96"), "x.json"):
            tuned(tmp_path, name)
        fault = only(path, ran(MISSED))
        shown = fault.partition(f"in {tmp_path}, ")[2].split("; ")
        assert shown[0].startswith(BF16)
        assert shown[1].startswith(f"{near} has ")
        assert len(shown) == 3

    def test_the_file_that_was_asked_for_lies_beside_the_expected_one(self, tmp_path: Path) -> None:
        tuned(tmp_path)
        path = tuned(tmp_path, BF16)
        faults = moe_faults(path, ran(read(tmp_path / FP8)), {})
        assert f"{FP8} has that very name" in faults[0]

    def test_a_folder_without_such_names_is_said(self, tmp_path: Path) -> None:
        path = tuned(tmp_path, "tuned.json")
        assert f"no file in {tmp_path} is named as vLLM" in only(path, ran(MISSED))

    def test_refined_blocks_are_the_reason(self, tmp_path: Path) -> None:
        refined = "FP8 MoE block scales refined from [128, 128] to [64, 64] to fit the TP-sharded size 192."
        asked = FP8.replace("N=768", "N=192")
        path = tuned(tmp_path, asked)
        found = ran(refined, missed(f"{SHIPPED}/{asked.replace('[128,128]', '[64,64]')}"))
        assert "vLLM refined the blocks to [64, 64] to fit this shard; tune for those" in only(path, found)


class TestWorkersThatDisagree:
    def test_a_node_without_the_file(self, path: Path) -> None:
        faults = moe_faults(path, ran_on_two(read(path), missed(path)), {})
        assert faults[0].startswith("Worker_TP8 ran the default configuration: it did not find ")
        assert faults[1] == (
            f"workers disagree about {FP8}: Worker_TP0 ran {path}; Worker_TP8 ran the default; "
            "give every node the same file at the same path"
        )

    def test_a_node_with_another_gpu(self, path: Path) -> None:
        other = missed(f"{SHIPPED}/{FP8.replace(H100, 'NVIDIA_H100_PCIe')}")
        assert "Worker_TP8 ran the default configuration: it looked" in only(path, ran_on_two(read(path), other))

    def test_when_the_default_was_meant(self) -> None:
        faults = moe_faults("default", ran_on_two(MISSED, read(f"/tuned/{FP8}")), {})
        assert [fault.split()[0] for fault in faults] == ["Worker_TP8", "workers"]


class TestEnvironment:
    @pytest.mark.parametrize("name", ["VLLM_USE_DEEP_GEMM", "VLLM_MOE_USE_DEEP_GEMM", "VLLM_USE_FLASHINFER_MOE_FP8"])
    def test_a_variable_that_chooses_the_backend(self, path: Path, name: str) -> None:
        proven = ran(read(path))
        assert only(path, proven, {name: "1"}).startswith(f"{name}=1 chooses the MoE backend by being set, even to its")
        assert moe_faults(path, proven, {name: "0"}) == ()
        assert any(fault.startswith(f"{name}=0") for fault in moe_faults(path, facts(server()), {name: "0"}))

    def test_a_folder_elsewhere_does_no_harm_once_the_file_was_read(self, path: Path) -> None:
        assert moe_faults(path, ran(read(path)), {FOLDER: "/other"}) == ()


class TestTheFileItself:
    def faults(self, path: Path, *, most_tokens: int = 8192) -> tuple[str, ...]:
        chunked = f"Chunked prefill is enabled with max_num_batched_tokens={most_tokens}."
        return moe_faults(path, ran(chunked, read(path)), {})

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"1": {"BLOCK_SIZE_M": 16', "is not valid JSON (Expecting"),
            ("[" * 100_000, "is not valid JSON ("),
            ("\udcff", "is not valid JSON ('utf-8' codec"),
            ("[1, 2]", "holds no JSON object of batch sizes"),
            ('{"triton_version": "3.6.0"}', "has no batch size: tune again"),
        ],
    )
    def test_a_broken_one(self, tmp_path: Path, text: str, said: str) -> None:
        path = tmp_path / FP8
        path.write_text(text, errors="surrogateescape")
        (fault,) = self.faults(path)
        assert said in fault

    def test_keys_that_are_no_numbers(self, tmp_path: Path) -> None:
        (fault,) = self.faults(tuned(tmp_path, sizes=[*USUAL_SIZES, "default", "1.5", "-1"]))
        assert "has keys that are no batch sizes (default, 1.5, -1): vLLM fails on them" in fault

    def test_a_size_without_a_configuration(self, path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), "64": {}, "96": None}))
        (fault,) = self.faults(path)
        assert "has no configuration for 64, 96" in fault

    def test_sizes_far_from_any_key(self, tmp_path: Path) -> None:
        (fault,) = self.faults(tuned(tmp_path, sizes=(96, 128, 256, 512, 1024)))
        assert "1, 2, 4, 8, 16, 24, 32 would run the one for 96; 3072, 4096 would run the one for 1024; " in fault
        assert "vLLM takes the nearest key, however far, and never the default for a single size" in fault

    def test_sizes_that_are_never_served_may_be_missing(self, tmp_path: Path) -> None:
        path = tuned(tmp_path, sizes=[size for size in USUAL_SIZES if size <= 1024])
        assert self.faults(path, most_tokens=2048) == ()
        assert "3072, 4096 would run" in self.faults(path)[0]

    def test_nine_sizes_a_factor_of_two_or_four_apart_are_enough(self, tmp_path: Path) -> None:
        assert self.faults(tuned(tmp_path, sizes=(1, 4, 16, 32, 64, 128, 512, 1024, 2048))) == ()

    @settings(max_examples=50, deadline=None)
    @given(st.sets(st.integers(1, 8192), min_size=1))
    def test_a_served_size_is_named_exactly_when_its_nearest_key_is_more_than_a_factor_of_two_away(
        self, tmp_path_factory: pytest.TempPathFactory, sizes: set[int]
    ) -> None:
        path = tuned(tmp_path_factory.mktemp("tuned"), sizes=sorted(sizes))
        nearest = [min(sorted(sizes), key=lambda key: abs(key - size)) for size in USUAL_SIZES]
        is_far = [not key / 2 <= size <= key * 2 for key, size in zip(nearest, USUAL_SIZES, strict=True)]
        assert bool(self.faults(path)) == any(is_far)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.text(), st.booleans())),
    st.dictionaries(st.sampled_from([FOLDER, "VLLM_BATCH_INVARIANT", "VLLM_USE_DEEP_GEMM"]), st.text()),
    st.text(min_size=1).filter(lambda name: "\0" not in name),
)
def test_no_log_and_no_name_makes_it_fail(lines: list[tuple[str, str, bool]], env: dict[str, str], name: str) -> None:
    log = "".join(server(read(path) if is_read else missed(path), process=who) for who, path, is_read in lines)
    for expected in (Path("/nowhere", name), "default"):
        moe_faults(expected, facts(log), env)  # type: ignore[arg-type]
