"""Ways to start a server: what is run for what is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_bench.hosts.launch import Image, Mount, Wanted, find_image, on_host, template
from slo_bench.hosts.vllm import VllmHost
from traffic.errors import EngineError, UsageError


def wanted(folder: Path, **changes: object) -> Wanted:
    given: dict[str, object] = {
        "model": "Qwen/Qwen3",
        "served_name": "qwen",
        "port": 8123,
        "args": ("--max-num-seqs", "64"),
        "env": {"PATH": "/bin"},
        "folder": folder,
    }
    return Wanted(**given | changes)  # type: ignore[arg-type]


class TestImageArguments:
    def image(self, program: str = "docker") -> Image:
        caches = (Mount(Path("/home/me/.cache/huggingface"), "/root/.cache/huggingface"),)
        return Image("vllm/vllm-openai:v0.24.0", Path("/usr/bin") / program, caches)

    def test_the_whole_list(self, tmp_path: Path) -> None:
        tuned = tmp_path / "tuned"
        env = {"PATH": "/bin", "HF_TOKEN": "secret", "VLLM_USE_DEEP_GEMM": "0", "VLLM_CACHE_ROOT": "/x", "LANG": "C"}
        run = self.image().invocation(wanted(tmp_path, env=env, tuned_dir=tuned, named=frozenset(("OMP_NUM_THREADS",))))
        assert list(run.command) == [
            "/usr/bin/docker", "run", "--rm", f"--cidfile={tmp_path}/.container-8123.id", "--gpus", "all", "--ipc=host",
            "--network=host", "--volume=/home/me/.cache/huggingface:/root/.cache/huggingface",
            f"--volume={tuned}:/tuned-moe:ro", "--env=HF_TOKEN", "--env=OMP_NUM_THREADS", "--env=VLLM_USE_DEEP_GEMM",
            "--env=VLLM_TUNED_CONFIG_FOLDER=/tuned-moe", "--entrypoint=vllm", "vllm/vllm-openai:v0.24.0", "serve",
            "Qwen/Qwen3", "--host", "127.0.0.1", "--port", "8123", "--served-model-name", "qwen", "--max-num-seqs",
            "64",
        ]  # fmt: skip
        assert "secret" not in " ".join(run.command)
        assert run.env["HF_TOKEN"] == "secret"  # noqa: S105 - handed to docker by its environment
        assert run.container is not None
        assert run.container.id_file == tmp_path / ".container-8123.id"

    def test_podman_names_gpus_in_its_own_way(self, tmp_path: Path) -> None:
        command = self.image("podman").invocation(wanted(tmp_path)).command
        assert command[4:8] == ("--device", "nvidia.com/gpu=all", "--security-opt", "label=disable")
        assert "--gpus" not in command

    def test_a_model_folder_is_mounted_read_only(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        model.mkdir()
        run = self.image().invocation(wanted(tmp_path, model=str(model)))
        assert f"--volume={model}:/model:ro" in run.command
        assert run.command[run.command.index("serve") + 1] == "/model"
        assert on_host("OSError: /model/config.json", run.mounts) == f"OSError: {model}/config.json"

    def test_an_image_for_the_cpu_asks_for_no_gpu(self, tmp_path: Path) -> None:
        image = Image("cpu", Path("/usr/bin/docker"), (), uses_gpu=False)
        assert "--gpus" not in image.invocation(wanted(tmp_path)).command

    def test_an_id_that_a_crash_left_is_not_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / ".container-8123.id").write_text("old")
        run = self.image().invocation(wanted(tmp_path))
        assert run.container is not None
        assert run.container.id is None

    def test_what_the_host_sets_is_refused(self) -> None:
        with pytest.raises(UsageError, match="--port is set by the host itself"):
            self.image().check_args(["--port", "1"])


class TestFindImage:
    def program(self, folder: Path, name: str) -> Path:
        path = folder / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    def test_docker_else_podman_and_folders_for_the_caches(self, tmp_path: Path) -> None:
        env = {"PATH": str(tmp_path), "HOME": str(tmp_path / "home")}
        podman = self.program(tmp_path, "podman")
        assert find_image("i", env).program == podman
        image = find_image("i", env | {"PATH": str(self.program(tmp_path, "docker").parent)})
        assert image.program == tmp_path / "docker"
        cache = tmp_path / "home" / ".cache"
        assert [mount.host for mount in image.caches] == [cache / "huggingface", cache / "vllm"]
        assert (cache / "vllm").is_dir()

    def test_caches_that_are_elsewhere(self, tmp_path: Path) -> None:
        self.program(tmp_path, "docker")
        env = {"PATH": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "VLLM_CACHE_ROOT": str(tmp_path / "v")}
        assert [mount.host.name for mount in find_image("i", env).caches] == ["hf", "v"]

    def test_neither_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match="neither docker nor podman is on PATH"):
            find_image("i", {"PATH": str(tmp_path)})


class TestOnHost:
    MOUNTS = (Mount(Path("/home/me/tuned"), "/tuned-moe"), Mount(Path("/m"), "/model"), Mount(Path("/n"), "/model/n"))

    @pytest.mark.parametrize(
        ("line", "mapped"),
        [
            ("from /tuned-moe/E=128,N=8.json for", "from /home/me/tuned/E=128,N=8.json for"),
            ("'/model', '/model/n/x'", "'/m', '/n/x'"),
            ("not found at /model/a.json, /tuned-moe", "not found at /m/a.json, /home/me/tuned"),
            ("/models /opt/model /model-2 ./model", "/models /opt/model /model-2 ./model"),
        ],
    )  # fmt: skip
    def test_whole_paths_are_mapped_and_nothing_else(self, line: str, mapped: str) -> None:
        assert on_host(line, self.MOUNTS) == mapped

    def test_without_mounts_nothing_is(self) -> None:
        assert on_host("/model", ()) == "/model"


class TestTemplate:
    def test_words_are_split_first_and_filled_in_afterwards(self, tmp_path: Path) -> None:
        command = template("python3 -m sglang --model {model} --port={port} {args} --note 'two words' {{x}}")
        tuned = tmp_path / "tuned here"
        run = command.invocation(wanted(tmp_path, model="a folder/m", args=("--x", "1 2"), tuned_dir=tuned))
        assert list(run.command) == [
            "python3", "-m", "sglang", "--model", "a folder/m", "--port=8123", "--x", "1 2", "--note", "two words",
            "{x}",
        ]  # fmt: skip

    def test_arguments_inside_a_word_are_quoted_for_the_shell_that_reads_it(self, tmp_path: Path) -> None:
        command = template("sh -c 'TUNED={tuned_dir} exec serve -p {port} {args}'")
        assert command.invocation(wanted(tmp_path, args=("--x", "1 2"))).command[2] == (
            "TUNED= exec serve -p 8123 --x '1 2'"
        )

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("serve", "needs {port}"),
            ("serve {prot}", r"has no field {prot}; fields are {args}, {model}, {port}, {tuned_dir}"),
            ("serve {port:x}", "has no field {port}"),
            ("serve {port.real}", "has no field {port.real}"),
            ("serve {}", "has no field {}"),
            ("serve {port", "'{port'; fields are"),
            ("serve 'x {port}", "cannot be split into words: no closing quotation"),
        ],
    )
    def test_what_cannot_be_filled_in_is_refused(self, text: str, problem: str) -> None:
        with pytest.raises(UsageError, match=problem):
            template(text)

    def test_arguments_without_a_place_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"no {args}, so --max-num-seqs 4 would be lost"):
            VllmHost("m", log_path=tmp_path / "log", way=template("s {port}"), engine_args=["--max-num-seqs", "4"])
        VllmHost("m", log_path=tmp_path / "log", way=template("s {port} {args}"), engine_args=["--host", "x"])
