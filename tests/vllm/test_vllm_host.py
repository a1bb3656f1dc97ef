import asyncio
from pathlib import Path

import pytest

from slo_bench.hosts.vllm import VllmHost
from slo_bench.hosts.vllm_process import members
from traffic.errors import EngineError
from traffic.records import End, Flight, Message, Request

ARGS = ("--load-format", "dummy", "--max-model-len", "2048", "--max-num-seqs", "16", "--enforce-eager")
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
PROMPT = (Message("user", "Natalia sold clips to 48 of her friends in April."),)


@pytest.mark.vllm
def test_a_real_server_starts_counts_answers_comes_to_rest_and_leaves_no_process(
    vllm_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    host = VllmHost(
        str(tiny_model),
        served_name="tiny",
        log_path=tmp_path / "engine.log",
        engine_args=ARGS,
        env=ENV,
        python=vllm_python,
        ready_timeout_s=600,
        on_progress=told.append,
    )

    async def run() -> int:
        async with host as running:
            assert running._process is not None
            assert (running.facts.kind, running.facts.model, running.facts.max_model_len) == ("vllm", "tiny", 2048)
            assert running.facts.takes_forced_length
            assert running.facts.version
            counted = await running.count_tokens(PROMPT)

            whole = Flight()
            await running.engine.generate(Request(0, 0.0, "chat", 20, 33, messages=PROMPT), whole)
            assert (whole.end, whole.error, whole.malformed_frames) == (End.FINISHED, "", 0)
            assert (whole.output_tokens, whole.output_tokens_estimated) == (33, False)
            assert whole.prompt_tokens == counted
            assert whole.sent_s is not None
            assert whole.first_token_s is not None
            assert whole.last_token_s is not None
            assert whole.sent_s < whole.first_token_s < whole.last_token_s

            refused = Flight()
            await running.engine.generate(Request(1, 0.0, "chat", 20, 9999, messages=PROMPT), refused)
            assert refused.end is End.FAILED
            assert "max_model_len" in refused.error

            cut = Flight()
            task = asyncio.create_task(running.engine.generate(Request(2, 0.0, "chat", 20, 2000, messages=PROMPT), cut))
            while cut.first_token_s is None:  # noqa: ASYNC110 - a flight has no event to offer
                await asyncio.sleep(0.01)
            with pytest.raises(EngineError, match=r"1 running, 0 waiting|looked once only"):
                await running.wait_idle(0.0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert (cut.end, cut.output_tokens > 0) == (None, True)
            await running.wait_idle(30.0)
            running.check()
            return running._process.pid

    pid = asyncio.run(run())
    assert [member for member in members(pid) if member.state != "Z"] == []
    assert any("init engine" in line for line in told)
