"""The text gate and the accuracy gate's asking on a real vLLM: its form of prompt_logprobs, its own finish_reason."""

import asyncio
from pathlib import Path

import pytest

from gates.accuracy import score
from gates.gsm8k import item, items_sha256
from gates.text import TextOutcome, difference, judge_text
from reports.text_document import TextDocument
from slo_bench.accuracy.gate import run_gsm8k
from slo_bench.accuracy.items import ItemSet
from slo_bench.accuracy.text import CONTINUATION_TOKENS, read_texts
from slo_bench.accuracy.texts import TEXTS
from slo_bench.hosts.vllm import VllmHost

ARGS = ("--load-format", "dummy", "--max-model-len", "2048", "--max-num-seqs", "16", "--enforce-eager")
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}


@pytest.mark.vllm
def test_a_real_server_reads_the_texts_alike_twice_and_says_itself_that_an_answer_was_cut(
    vllm_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    host = VllmHost(
        str(tiny_model),
        served_name="tiny",
        log_path=tmp_path / "engine.log",
        engine_args=ARGS,
        env=ENV,
        python=vllm_python,
        ready_timeout_s=600,
    )
    items = (item(0, "What is 1 + 1?", "2"), item(1, "What is 1 + 2?", "3"))

    async def run() -> tuple[list[TextDocument], list[str | None], int]:
        async with host as running:
            read = [await read_texts(running, label=label) for label in ("first", "repeat")]
            asked = await run_gsm8k(
                running.engine,
                ItemSet(items, "ours", items_sha256(items)),
                label="noise",
                concurrency=4,
                token_budget=64,
                deadline_s=120.0,
            )
            return read, [each.finish_reason for each in asked.results], score(asked.results).errors

    documents, reasons, errors = asyncio.run(run())
    assert [document.not_measured for document in documents] == [None, None]
    for document in documents:
        assert len(document.texts) == len(TEXTS)
        assert all(len(row.logprobs) > 40 and len(row.continuation) == CONTINUATION_TOKENS for row in document.texts)
        assert all(-100 <= logprob <= 0 for row in document.texts for logprob in row.logprobs)
    first, repeat = (document.run() for document in documents)
    assert first is not None
    assert repeat is not None
    found = difference(first, repeat)
    assert found is not None
    print(f"the same server twice: {found}")
    assert judge_text(found, found).outcome is TextOutcome.SAME
    assert found.mean_logprob < 0.01
    assert (errors, reasons) == (0, ["length", "length"])
