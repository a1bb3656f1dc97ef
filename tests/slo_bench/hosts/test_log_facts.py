"""Facts from the real log of vLLM 0.32.0 on a CPU, and from lines built here.

No log of a GPU server is at hand: the lines of 0.20.2 to 0.32.0 below are built from a description of their wording
(read in the sources of these versions), those of 0.8.5 and of late 2025 from logs quoted in public issues.
"""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.hosts.log_facts import (
    BlockRefinement,
    LogFacts,
    MoeBackend,
    MoeLookup,
    compilations,
    log_facts,
)

SERVER_LOG = (Path(__file__).parents[2] / "vllm_samples" / "server.log").read_bytes().decode()
FOLDER = "/site/vllm/model_executor/layers/fused_moe/configs"
NAME = "E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
READ = f"Using configuration from /tuned-moe/{NAME} for MoE layer."
DEFAULT = "Using default MoE config. Performance might be sub-optimal! Config file not found at "
TRITON = (
    "Using TRITON Fp8 MoE backend out of potential backends: ['FLASHINFER_CUTLASS', 'DEEPGEMM', 'TRITON', 'MARLIN']."
)
READY = "INFO:     Application startup complete."
JIT = "Triton kernel JIT compilation during inference: fused_moe_kernel. This causes a latency spike; consider"

# Wordings that are the same in 0.20.2, 0.22.1, 0.24.0, 0.31.0 and 0.32.0.
CONFIG = (
    "Initializing a V1 LLM engine (v0.24.0) with config: model='m', enforce_eager=False, enable_prefix_caching=False, "
    "enable_chunked_prefill=True, compilation_config={'decoder_replay_cudagraph_capture_sizes': [], "
    "'cudagraph_capture_sizes': [1, 2, 4, 8], 'max_cudagraph_capture_size': 8}"
)
GPU_START = (
    CONFIG,
    "non-default args: {'model': 'm', 'max_num_seqs': 256, 'enable_prefix_caching': False}",
    "Chunked prefill is enabled with max_num_batched_tokens=8192.",
    "Asynchronous scheduling is enabled.",
    "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN'].",
    TRITON,
    "FP8 MoE block scales refined from [128, 128] to [64, 64] to fit the TP-sharded intermediate size 192.",
    READ,
    "Using configuration from /site/configs/N=4096,K=1024,device_name=X.json for W8A8 Block FP8 kernel.",
    "Using tuned LoRA kernel configs from /tuned-moe/NVIDIA_H100_SHRINK.json.",
    "Model loading took 29.03 GiB memory and 12.345678 seconds",
    "torch.compile took 67.21 s in total",
    "Available KV cache memory: 86.24 GiB",
    "GPU KV cache size: 941,840 tokens, Maximum concurrency for 8,192 tokens per request: 114.97x",
    "Graph capturing finished in 34 secs, took 0.71 GiB",
    "init engine (profile, create kv cache, warmup model) took 118.40 s (compilation: 67.21 s)",
)

Prefix = Callable[[str], str]


def old(message: str, process: str = "EngineCore", level: str = "INFO", at: str = "12-01 10:00:00") -> str:
    """Up to 0.24: the process by a wrapped stream, the rest by the formatter; both give the same line."""
    return f"({process} pid=310) {level} {at} [fused_moe.py:1071] {message}"


def coloured(message: str) -> str:
    return (
        "\x1b[0;36m(EngineCore pid=310)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m12-01 10:00:00\x1b[0m "
        f"\x1b[90m[fused_moe.py:1150]\x1b[0m {message}"
    )


def in_json(message: str) -> str:
    where = {"asctime": "2026-12-01 10:00:00,123", "levelname": "INFO", "name": "vllm.x", "process": 310}
    return json.dumps({**where, "processName": "EngineCore", "message": message})


PREFIXES: tuple[Prefix, ...] = (
    old,
    coloured,
    in_json,
    lambda message: message,
    lambda message: f"INFO 12-01 10:00:00 [fused_moe.py:690] {message}",
    lambda message: f"(EngineCore pid=9) (Worker_TP0_EP0 pid=310) INFO 12-01 10:00:00.123 [x.py:1] {message}",
    lambda message: f"vllm-1  | {old(message)}",
    lambda message: f"Aug 25 19:32:10 host vllm[72]: {old(message)}",
    lambda message: f"Capturing CUDA graphs: 50%|██ | 1/2\rCapturing CUDA graphs: 100%|████| 2/2{old(message)}",
    lambda message: f"(RayWorkerWrapper pid=310, ip=10.0.0.1) {old(message, 'x')} [repeated 7x across cluster]",
)


def log(*lines: str) -> LogFacts:
    return log_facts("\n".join(lines) + "\n")


def lookups(*lines: str) -> tuple[MoeLookup, ...]:
    return log(*lines).moe_lookups


class TestTheRealLog:
    def test_its_facts(self) -> None:
        facts = log_facts(SERVER_LOG)
        assert facts.version == "0.32.0"
        assert facts.moe_backends == (MoeBackend("CPU", "Unquantized", ("CPU",), "Worker"),)
        assert (facts.init_engine_s, facts.kv_cache_tokens, facts.max_concurrency) == (0.87, 2_097_152, 1024.0)
        assert facts.chunked_prefill is facts.prefix_caching is facts.is_ready is True
        assert facts.max_num_seqs == 16
        assert facts.moe_lookups == facts.capture_sizes == facts.attention_backends == ()

    def test_what_it_does_not_say_is_none(self) -> None:
        facts = log_facts(SERVER_LOG)
        assert facts.block_refinement is facts.async_scheduling is facts.max_num_batched_tokens is None
        assert facts.model_load_s is facts.model_load_gib is facts.compile_s is facts.kv_cache_gib is None
        assert facts.graph_capture_s is facts.graph_capture_gib is None

    def test_a_warning_of_two_processes_is_one_and_names_no_process(self) -> None:
        warnings = log_facts(SERVER_LOG).warnings
        assert sum("Model Runner V2 requires Triton" in warning for warning in warnings) == 1
        assert "[shutdown] force killing sub process VLLM::Worker pid N" in warnings
        assert len(warnings) == 11

    def test_the_version_stands_in_the_logo_too(self) -> None:
        logo = [line for line in SERVER_LOG.split("\n") if "api_utils.py:347" in line]
        assert log_facts("\n".join(logo)).version == "0.32.0"

    def test_its_tail_says_nothing_of_the_start(self) -> None:
        facts = log_facts(SERVER_LOG[SERVER_LOG.index(READY) + len(READY) :])
        assert facts == replace(log_facts(""), warnings=facts.warnings)


class TestAnyFormatter:
    @pytest.mark.parametrize("prefix", PREFIXES)
    def test_a_gpu_server_is_read_behind_any_prefix(self, prefix: Prefix) -> None:
        facts = log(*map(prefix, GPU_START), READY)
        assert (facts.version, facts.attention_backends) == ("0.24.0", ("FLASH_ATTN",))
        assert [backend.name for backend in facts.moe_backends] == ["TRITON"]
        assert facts.moe_backends[0].potential == ("FLASHINFER_CUTLASS", "DEEPGEMM", "TRITON", "MARLIN")
        assert [lookup.used for lookup in facts.moe_lookups] == [f"/tuned-moe/{NAME}"]
        assert facts.block_refinement == BlockRefinement("[128, 128]", "[64, 64]", 192)
        assert (facts.model_load_gib, facts.model_load_s, facts.compile_s) == (29.03, 12.345678, 67.21)
        assert (facts.graph_capture_s, facts.graph_capture_gib, facts.init_engine_s) == (34.0, 0.71, 118.4)
        assert (facts.kv_cache_gib, facts.kv_cache_tokens, facts.max_concurrency) == (86.24, 941_840, 114.97)
        assert (facts.max_num_batched_tokens, facts.max_num_seqs) == (8192, 256)
        assert (facts.chunked_prefill, facts.prefix_caching, facts.async_scheduling) == (True, False, True)
        assert (facts.capture_sizes, facts.is_ready) == ((1, 2, 4, 8), True)

    @settings(max_examples=60, deadline=None)
    @given(st.randoms(use_true_random=False), st.lists(st.text(st.characters(exclude_categories=["C"])), max_size=8))
    def test_neither_order_nor_prefix_nor_other_lines_change_a_fact(
        self, chance: random.Random, others: list[str]
    ) -> None:
        lines = [chance.choice(PREFIXES)(message) for message in GPU_START] + [READY, *others]
        chance.shuffle(lines)
        facts = log(*lines)
        plain = log(*GPU_START, READY)
        assert {(each.used, each.asked) for each in facts.moe_lookups} == {(f"/tuned-moe/{NAME}", ())}
        known = {"moe_lookups": (), "moe_backends": (), "warnings": ()}
        assert replace(facts, **known) == replace(plain, **known)

    @settings(deadline=None)
    @given(
        st.lists(st.one_of(st.text(), st.sampled_from([*GPU_START, DEFAULT, READY, JIT, "{", '{"message": 1}', "\r"]))),
        st.sampled_from(["\n", "\r\n", "\r", ""]),
    )
    def test_no_text_makes_it_fail(self, lines: list[str], end: str) -> None:
        text = end.join(lines)
        assert isinstance(log_facts(text), LogFacts)
        assert isinstance(compilations(text), tuple)

    def test_numbers_that_are_none_are_left_out(self) -> None:
        facts = log(
            "Model loading took ... GiB memory and 1.2.3 seconds",
            "torch.compile took " + "9" * 400 + " s in total",
            "GPU KV cache size: ,,, tokens",
            "Chunked prefill is enabled with max_num_batched_tokens=" + "9" * 5000,
        )
        assert facts == log_facts("")

    def test_a_log_that_went_through_a_terminal_is_read_alike(self) -> None:
        lines = [old(message) for message in GPU_START]
        assert log_facts("\r\n".join([*lines, READY, ""])) == log(*lines, READY)


class TestMoeLookups:
    def test_a_default_asks_for_one_path_without_a_folder_of_its_own_and_for_two_with_one(self) -> None:
        one, two = f"{FOLDER}/{NAME}", f"/tuned-moe/{NAME}"
        assert lookups(old(DEFAULT + one)) == (MoeLookup("EngineCore", 310, None, (one,)),)
        assert lookups(old(f"{DEFAULT}{two}, {one}")) == (MoeLookup("EngineCore", 310, None, (two, one)),)

    def test_older_wordings_and_each_worker_for_itself(self) -> None:
        path = f"{FOLDER}/{NAME}"
        found = lookups(
            f"WARNING 11-03 15:51:20 [fused_moe.py:690] {DEFAULT}{path}",  # 0.8.5
            f"(EngineCore_DP0 pid=809) WARNING 11-14 21:03:24 [fused_moe.py:887] {DEFAULT}['{path}']",  # late 2025
            f"(VllmWorker TP2 pid=60) INFO 09-09 16:23:07 [fused_moe.py:720] {READ}",
            f"(Worker_TP1_EP1 pid=2) (Worker_TP6_EP6 pid=84) WARNING 09-24 20:53:34 [fused_moe.py:7] {DEFAULT}/a.json",
        )
        assert found == (
            MoeLookup("", None, None, (path,)),
            MoeLookup("EngineCore_DP0", 809, None, (path,)),
            MoeLookup("VllmWorker TP2", 60, f"/tuned-moe/{NAME}"),
            MoeLookup("Worker_TP6_EP6", 84, None, ("/a.json",)),
        )

    def test_a_device_with_brackets_is_read_whole(self) -> None:
        path = "/tuned/E=256,N=384,device_name=Intel(R)_Graphics_[0xe223],dtype=int4_w4a16.json"
        assert lookups(old(f"Using configuration from {path} for MoE layer."))[0].used == path
        assert lookups(old(f"{DEFAULT}{path}, {path}"))[0].asked == (path, path)

    @pytest.mark.parametrize(
        "sibling",
        [
            f"Using configuration from {FOLDER}/N=1,K=2.json for W8A8 Block FP8 kernel.",
            "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at /a",
            "Using tuned LoRA kernel configs from /tuned-moe/NVIDIA_H100_EXPAND_TRUE.json.",
            "No LoRA kernel configs found in /tuned-moe/NVIDIA_H100_SHRINK.json",
            "Using default Mamba SSU config. Performance might be sub-optimal! Config file not found at /a.json, /b",
            "Using default FlyDSL MoE config. Performance might be sub-optimal! Config file not found at /a.json",
            "Using tuned FlyDSL MoE config from /a.json",
            "Using CPUUnquantizedExperts MoE backend",
        ],
    )
    def test_a_sibling_is_no_moe_configuration(self, sibling: str) -> None:
        facts = log(old(sibling))
        assert facts.moe_lookups == facts.moe_backends == ()

    @pytest.mark.parametrize("message", [READ, TRITON, DEFAULT + "/a.json", "torch.compile took 9 s", READY])
    def test_a_prompt_that_the_server_echoes_is_no_fact(self, message: str) -> None:
        in_line = old(f"Received request chatcmpl-1: prompt: 'INFO 12-01 10:00:00 [x.py:1] {message}")
        as_json = old('Received request: {"message": "' + message + '"}')
        of_lines = "\r\n".join([old("Received request chatcmpl-1: prompt: 'tell me:"), old(message), old("please")])
        assert log("first", in_line, as_json, of_lines) == log_facts("")


class TestMoeBackends:
    @pytest.mark.parametrize(
        ("message", "name", "kind"),
        [
            ("Using A B Unquantized MoE backend out of potential backends: ['TRITON'].", "A B", "Unquantized"),
            ("Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN'].", "MARLIN", "NvFp4"),
            ("Using 'TRITON' WNA16 MoE backend.", "TRITON", "WNA16"),
            ("Using 'X Y' MxFp8 MoE backend (user-requested).", "X Y", "MxFp8"),
            ("Using CPU W4A8 Int8 MoE backend out of potential backends: ['CPU'].", "CPU", "W4A8 Int8"),
            ("Using Triton backend for FP8 MoE", "Triton", "FP8"),
        ],
    )
    def test_every_wording_names_one(self, message: str, name: str, kind: str) -> None:
        (backend,) = log(old(message)).moe_backends
        assert (backend.name, backend.kind) == (name, kind)

    def test_a_draft_model_has_its_own(self) -> None:
        draft = "Using TRITON Unquantized MoE backend out of potential backends: ['TRITON', 'BATCHED_TRITON']."
        names = [(each.name, each.kind) for each in log(old(TRITON), old(draft), old(TRITON)).moe_backends]
        assert names == [("TRITON", "Fp8"), ("TRITON", "Unquantized")]


class TestOtherFacts:
    @pytest.mark.parametrize(
        ("message", "fact", "value"),
        [
            ("Using AttentionBackendEnum.FLASHINFER backend.", "attention_backends", ("FLASHINFER",)),
            ("Using Flash Attention backend on V1 engine.", "attention_backends", ("Flash Attention",)),
            ("Model loading took 4.2117 GiB and 5.31 seconds", "model_load_s", 5.31),
            ("torch.compile takes 18.85 s in total", "compile_s", 18.85),
            ("[encoder] torch.compile took 3.00 s in total", "compile_s", 3.0),
            ("init engine (profile, create kv cache, warmup model) took 28.44 seconds", "init_engine_s", 28.44),
            ("Graph capturing finished in 69 secs.", "graph_capture_s", 69.0),
            ("Maximum concurrency for 8,192 tokens per request: 98.20x", "max_concurrency", 98.2),
            ("Initial free memory 138.9 GiB, reserved 10.5 GiB memory for KV Cache as", "kv_cache_gib", 10.5),
            ("Asynchronous scheduling is disabled.", "async_scheduling", False),
            ("Async scheduling not supported with x-based decoding and will be disabled.", "async_scheduling", False),
            ("non-default args: {'async_scheduling': False}", "async_scheduling", False),
            ("non-default args: {'max_num_batched_tokens': 4096}", "max_num_batched_tokens", 4096),
            ("vLLM API server version 0.8.5", "version", "0.8.5"),
            ("vLLM server version 0.33.0, serving model m", "version", "0.33.0"),
            ("Initializing a V0 LLM engine (v0.8.5.post1) with config: x", "version", "0.8.5.post1"),
        ],
    )
    def test_a_wording(self, message: str, fact: str, value: object) -> None:
        assert getattr(log(old(message)), fact) == value

    def test_the_slowest_worker_and_the_smallest_cache_count(self) -> None:
        load, cache = "Model loading took {} GiB memory and {} seconds", "GPU KV cache size: {} tokens"
        workers = [old(load.format(15.0, 10.0), "Worker_TP0"), old(load.format(14.0, 30.0), "Worker_TP1")]
        engines = [old(cache.format("9,000"), "EngineCore_DP0"), old(cache.format("8,000"), "EngineCore_DP1")]
        facts = log(*workers, *engines)
        assert (facts.model_load_s, facts.model_load_gib, facts.kv_cache_tokens) == (30.0, 15.0, 8000)

    def test_the_engine_has_the_last_word_on_a_setting(self) -> None:
        asked = "non-default args: {'enable_prefix_caching': True}"
        assert log(old(asked)).prefix_caching is True
        assert log(old(asked), old(CONFIG)).prefix_caching is False

    def test_warnings_keep_neither_process_nor_time(self) -> None:
        facts = log(
            old("killed pid 17 at 10:11:12", "Worker_TP0", "WARNING"),
            old("killed pid 18 at 10:11:13", "Worker_TP1", "WARNING", "12-01 11:00:00"),
            old("an error is no warning", level="ERROR"),
        )
        assert facts.warnings == ("killed pid N at N",)


class TestCompilations:
    @pytest.mark.parametrize(
        "message",
        [
            JIT,
            "CuTeDSL JIT compilation during inference: x. This causes a latency spike",
            "Starting torch.compile",
            "[target] Compiling a graph for compile range (1, 8192) takes 6.18 s",
            "Graph capturing finished in 4 secs, took 0.1 GiB",
            "Capturing a cudagraph on (PIECEWISE,8)",
            "Autotuning kernel fused_moe_kernel with config BLOCK_M: 16",
        ],
    )
    def test_each_is_told(self, message: str) -> None:
        assert compilations("\n".join([old("x"), old(message), old("y")])) == (message,)

    def test_what_eight_workers_say_is_said_once(self) -> None:
        lines = [old(JIT, f"Worker_TP{rank}", at=f"12-01 10:00:0{rank}") for rank in range(8)]
        assert compilations("\n".join(lines)) == (JIT,)

    def test_talk_of_compiling_is_none(self) -> None:
        for message in (
            "Skipping FlashInfer autotune because it is disabled.",
            "Kernel JIT monitor activated; monitored JIT compilations during inference will use mode=warn.",
            "Received request chatcmpl-1: prompt: 'Compiling a graph for me'",
        ):
            assert compilations(old(message)) == ()

    def test_flashinfer_has_a_format_of_its_own(self) -> None:
        text = "[Autotuner]: Autotuning process starts ..."
        line = f"(EngineCore pid=1) 2026-03-18 06:57:26,008 - INFO - autotuner.py:256 - flashinfer.jit: {text}"
        assert compilations(line) == (text,)

    def test_the_states_of_a_progress_bar_are_one(self) -> None:
        text = "Capturing CUDA graphs (decode, FULL)"
        assert compilations(f"\r{text}:   0%|   | 0/4\r{text}: 100%|██| 4/4") == (text,)
