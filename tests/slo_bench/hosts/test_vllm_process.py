import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_server import eventually

from slo_bench.hosts.vllm_process import (
    ServerProcess,
    hold_port,
    members,
    port_becomes_free,
    root_cause,
)
from traffic.errors import EngineError

SAMPLES = Path(__file__).parents[2] / "vllm_samples"

STUBBORN_PARENT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
print("up", flush=True)
time.sleep(60)
"""
POLITE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"bye\\n"), os._exit(0)))
print("up", flush=True)
time.sleep(60)
"""
ORPHAN = """
import os, sys, time
if os.fork():
    sys.exit(3)
print("up", flush=True)
time.sleep(60)
"""
ENV = {"PATH": os.defpath}


def program(source: str, log_path: Path) -> ServerProcess:
    return ServerProcess([sys.executable, "-S", "-c", source], env=ENV, log_path=log_path)


def living(leader: int) -> list[int]:
    return [member.pid for member in members(leader) if member.state != "Z"]


def run_up(source: str, tmp_path: Path, use: Callable[[ServerProcess], object], *, lines: int = 1) -> None:
    """Start a program, wait until it has said "up" so often, use it, and leave nothing behind."""

    async def run() -> None:
        process = program(source, tmp_path / "engine.log")
        try:
            await eventually(lambda: process.log_text().count("up\n") >= lines)
            result = use(process)
            if asyncio.iscoroutine(result):
                await result
        finally:
            process.kill()
            await process.stop(grace_s=1.0)

    asyncio.run(run())


class TestStop:
    def test_a_polite_server_ends_by_itself(self, tmp_path: Path) -> None:
        async def use(process: ServerProcess) -> None:
            assert process.exit_code() is None
            await process.stop(grace_s=5.0)
            assert process.exit_code() == 0
            assert process.log_text().endswith("bye\n")
            assert process.new_log_text() == process.log_text()
            assert process.new_log_text() == ""
            await process.stop()

        run_up(POLITE, tmp_path, use)

    def test_a_server_that_ignores_sigterm_is_killed_with_its_children(self, tmp_path: Path) -> None:
        async def use(process: ServerProcess) -> None:
            assert len(living(process.pid)) == 2
            await process.stop(grace_s=0.05)
            assert living(process.pid) == []
            assert process.exit_code() == -signal.SIGKILL

        run_up(STUBBORN_PARENT, tmp_path, use, lines=2)

    def test_a_worker_that_outlives_its_server_is_killed(self, tmp_path: Path) -> None:
        async def use(process: ServerProcess) -> None:
            await eventually(lambda: process.exit_code() == 3)
            assert len(living(process.pid)) == 1
            await process.stop(grace_s=0.05)
            assert living(process.pid) == []

        run_up(ORPHAN, tmp_path, use)

    def test_cancelling_a_stop_ends_the_patience_and_not_the_work(self, tmp_path: Path) -> None:
        async def use(process: ServerProcess) -> None:
            stopping = asyncio.create_task(process.stop(grace_s=60.0))
            await asyncio.sleep(0.02)
            stopping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(stopping, 10.0)
            assert living(process.pid) == []

        run_up(STUBBORN_PARENT, tmp_path, use, lines=2)

    def test_a_server_that_cannot_be_killed_is_an_engine_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def use(process: ServerProcess) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(ServerProcess, "kill", lambda _: None)
                with pytest.raises(EngineError, match=f"processes {process.pid}.* are still there 0.05 s after"):
                    await process.stop(grace_s=0.02, kill_s=0.05)

        run_up(STUBBORN_PARENT, tmp_path, use, lines=2)


class TestStart:
    def test_it_leads_a_session_of_its_own_so_that_ctrl_c_is_not_for_it(self, tmp_path: Path) -> None:
        def use(process: ServerProcess) -> None:
            assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid != os.getsid(0)

        run_up(POLITE, tmp_path, use)

    def test_a_program_that_is_not_there_is_an_engine_error(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match=r"cannot start .*nowhere: no such file"):
            ServerProcess([str(tmp_path / "nowhere")], env={}, log_path=tmp_path / "engine.log")

    def test_a_log_is_appended_to_and_only_its_own_part_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "engine.log"
        path.parent.mkdir()
        path.write_text("ValueError: of an earlier start\n")

        async def run() -> None:
            process = program("raise KeyError('of this start')", path)
            await eventually(lambda: process.exit_code() is not None)
            assert process.death() == "KeyError: 'of this start' (exit code 1)"
            await process.stop()
            assert process.death() == "KeyError: 'of this start' (exit code 1)"

        asyncio.run(run())
        assert path.read_text().startswith("ValueError: of an earlier start\n")

    def test_a_death_by_signal_is_named(self, tmp_path: Path) -> None:
        async def use(process: ServerProcess) -> None:
            os.kill(process.pid, signal.SIGKILL)
            await eventually(lambda: process.exit_code() is not None)
            assert process.death() == "up (killed by SIGKILL)"

        run_up(POLITE, tmp_path, use)


class TestPort:
    def test_a_held_port_is_nobody_elses_until_it_is_let_go(self) -> None:
        async def run() -> None:
            holder, port = hold_port()
            assert not await port_becomes_free(port, 0.0)
            holder.close()
            assert await port_becomes_free(port, 1.0)

        asyncio.run(run())


ENGINE = "(EngineCore pid=12) ERROR 12-01 21:56:19 [core.py:1510] "
WORKER = "(Worker_TP1 pid=13) ERROR 12-01 21:56:18 [multiproc_executor.py:953] "
API = "(APIServer pid=11) "
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
MEMORY = (
    "ValueError: Free memory on device cuda:0 (1.2/79.1 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 72.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)


def traceback(prefix: str, exception: str) -> list[str]:
    return [f"{prefix}{line}" for line in ("Traceback (most recent call last):", '  File "x.py", line 1', exception)]


def log(*blocks: list[str] | str) -> str:
    return "\n".join(line for block in blocks for line in ([block] if isinstance(block, str) else block))


class TestRootCause:
    def test_a_recorded_port_conflict(self) -> None:
        text = (SAMPLES / "port_in_use.log").read_text()
        assert root_cause(text) == "OSError: [Errno 98] Address already in use"

    @pytest.mark.parametrize(
        "cause",
        [
            MEMORY,
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "AssertionError: Error in memory profiling. Initial free memory 1 GiB, current free memory 2 GiB.",
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12080).",
            "RuntimeError: No CUDA GPUs are available",
        ],
    )
    @pytest.mark.parametrize("prefix", [ENGINE, WORKER])
    def test_the_engines_first_exception_and_not_the_wrapper_at_the_end(self, cause: str, prefix: str) -> None:
        text = log(
            f"{API}INFO 12-01 21:56:01 [api_utils.py:286] non-default args: {{}}",
            f"{prefix}EngineCore failed to start.",
            traceback(prefix, cause),
            traceback("(EngineCore pid=12) ", cause.split(":", maxsplit=1)[0] + ": again"),
            traceback(
                ENGINE, "Exception: WorkerProc initialization failed due to an exception in a background process."
            ),
            traceback(API, WRAPPER),
        )
        assert root_cause(text) == cause

    def test_of_a_chain_the_first(self) -> None:
        link = "During handling of the above exception, another exception occurred:"
        text = log(traceback("", "KeyError: 'q_proj'"), link, traceback("", "ValueError: cannot load weights"))
        assert root_cause(text) == "KeyError: 'q_proj'"

    def test_of_several_failures_outside_the_engine_the_last(self) -> None:
        text = log(
            traceback("", "ValueError: a bad request an hour ago"), "INFO: x", traceback("", "OSError: disk full")
        )
        assert root_cause(text) == "OSError: disk full"

    def test_a_warning_with_a_traceback_is_no_cause(self) -> None:
        prefix = "(EngineCore pid=12) WARNING 12-01 21:56:19 [import_utils.py:1] "
        text = log(traceback(prefix, "ImportError: no flashinfer"), traceback(ENGINE, MEMORY))
        assert root_cause(text) == MEMORY

    def test_a_validation_error_brings_its_next_line(self) -> None:
        text = log(
            traceback("", "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"),
            "  Value error, max_model_len (9999) is greater than the derived max_model_len [type=value_error]",
        )
        assert "ModelConfig Value error, max_model_len (9999)" in root_cause(text)

    @pytest.mark.parametrize(
        ("lines", "cause"),
        [
            (["usage: x", "api_server.py: error: unrecognized arguments: --nope", ""], "api_server.py: error: unrecog"),
            (
                [f"{API}WARNING 12-01 21:56:19 [cuda.py:1] Error 803: system has unsupported display driver", "x"],
                "Error",
            ),
            ([f"{ENGINE}EngineCore encountered an issue.", f"{API}ERROR 12-01 21:56:19 [a.py:1] boom", "x"], "boom"),
            (["Loading weights", "Illegal instruction"], "Illegal instruction"),
            ([], "it wrote nothing to its log"),
        ],
    )
    def test_without_an_exception_the_best_line_there_is(self, lines: list[str], cause: str) -> None:
        assert root_cause(log(lines)).startswith(cause)
