"""`slo-bench advise`: answers vLLM's MoE warning, in seconds from files, and in a minute by measuring on the GPU."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path, PurePath

from pydantic import field_validator, model_validator

from reports.kernels import KERNELS_NAME
from reports.metrics import read_metrics
from reports.run_directory import EngineDocument, SweepDocument, read_document, to_json
from slo_bench.engine_options import option
from slo_bench.hosts.log_facts import LogFacts, log_facts
from slo_bench.moe.advising.bound import bound_lines, tpot_slope
from slo_bench.moe.advising.measured import SIZES, Measured, kernel_options, measure, place_for
from slo_bench.moe.advising.told import SERVER_TOKENS, Question, advice, served_shape
from slo_bench.moe.bench import BenchFacts
from slo_bench.moe.config_files import FileKey, parse_name, parse_version, rank_names
from slo_bench.moe.coverage import bands_of
from slo_bench.moe.kernels_options import FOLDER_NAME
from slo_bench.moe.layer_options import LayerOptions, parse_block
from slo_bench.moe.shape import MoeModel, MoeShape, Quantisation, parse_shape, read_model
from slo_bench.options import Options, StringList
from slo_bench.store import RunStore, write_text
from traffic.errors import UsageError
from traffic.server_facts import Histogram, difference

_ASKED, _MODEL, _WHERE, _MEASURED = "what vLLM said", "the model", "where files are", "measuring"
_WARNING = "Using default MoE config"
_NOT_YET = BenchFacts("a GPU", 0, 0, {"vllm": "0.24.0"})
"""Stands for the GPU while nothing is measured: whether the rest makes sense is known without it."""

_BANDS = 3


class AdviseOptions(Options):
    """What is known of the server."""

    source: Path | None = option(
        None, "vLLM's log, or a run directory", group=_ASKED, metavar="LOGFILE|RUN_DIR", is_positional=True
    )
    warning: str | None = option(None, "vLLM's warning, in place of its log", group=_ASKED, metavar="LINE")
    model: Path | None = option(None, "local model folder, or its config.json", group=_MODEL, metavar="FOLDER")
    shape: str | None = option(
        None,
        "the layer, in place of a model: E=128,N=768,K=2048,top-k=8 (and ,ep=4); E of all ranks, N on one",
        group=_MODEL,
    )
    dtype: str | None = option(None, "with --shape: fp8_w8a8, int4_w4a16, ... (default: BF16)", group=_MODEL)
    block_shape: str | None = option(None, "with --shape: blocks that share a scale", group=_MODEL, metavar="N,K")
    tensor_parallel_size: int = option(1, "ranks that share the model", group=_MODEL, metavar="N", ge=1)
    data_parallel_size: int = option(1, "replicas; experts are spread over them too", group=_MODEL, metavar="N", ge=1)
    enable_expert_parallel: bool = option(default=False, description="whole experts per rank", group=_MODEL)
    device: str | None = option(None, "the GPU, like 'NVIDIA H200'", group=_MODEL, metavar="NAME")
    vllm_version: str | None = option(None, "like 0.24.0 (default: as the log says)", group=_MODEL, metavar="V")
    folder: StringList = option(
        [], "VLLM_TUNED_CONFIG_FOLDER, then vLLM's own; repeatable, in that order", group=_WHERE, metavar="FOLDER"
    )

    measure: bool = option(
        default=False,
        description="about a minute on this GPU: the kernel against its limit, and its share of a decode step",
        group=_MEASURED,
    )
    vllm_python: Path | None = option(
        None, "with --measure: interpreter that has vLLM (default: this one)", group=_MEASURED, metavar="PATH"
    )
    output: Path | None = option(
        None, "with --measure: new folder for advice.json, kernels.json and logs", group=_MEASURED, metavar="DIR"
    )

    @field_validator("vllm_python", "output")
    @classmethod
    def _home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    @field_validator("folder")
    @classmethod
    def _are_folders(cls, folders: list[str]) -> list[str]:
        for folder in folders:
            if not Path(folder).is_dir():
                raise ValueError(f"{folder} is no folder")
        return folders

    @model_validator(mode="after")
    def _makes_sense(self) -> AdviseOptions:
        if self.source is not None and self.warning is not None:
            raise ValueError("give a log or --warning, not both")
        if self.model is not None and self.shape is not None:
            raise ValueError("give --model or --shape, not both")
        if self.source is None and self.warning is None and self.model is None and self.shape is None:
            raise ValueError("give vLLM's log, a run directory, --warning 'LINE' or --model FOLDER")
        if self.measure and self.model is None and self.shape is None:
            raise ValueError("--measure needs --model FOLDER (its config.json is enough for the kernel) or --shape")
        if not self.measure and (self.output is not None or self.vllm_python is not None):
            raise ValueError("--output and --vllm-python go with --measure")
        if self.shape is None and (self.dtype is not None or self.block_shape is not None):
            raise ValueError("--dtype and --block-shape go with --shape; a model says them itself")
        ranks = self.tensor_parallel_size * self.data_parallel_size
        if self.shape is not None and (ranks > 1 or self.enable_expert_parallel):
            raise ValueError("--shape says itself what a rank holds (N and ep)")
        return self

    def layer(self) -> tuple[MoeShape, Quantisation] | None:
        """The layer as the options spread it over ranks; None without a model or a shape. Raises UsageError."""
        if self.shape is not None:
            return parse_shape(self.shape), Quantisation(self.dtype, parse_block(self.block_shape))
        if self.model is None:
            return None
        model = read_model(self.model)
        ranks = self.tensor_parallel_size * self.data_parallel_size
        return model.shape(ranks=ranks, is_expert_parallel=self.enable_expert_parallel), model.quantisation


async def advise(options: AdviseOptions) -> int:
    """Print what can be said; 0. Raises UsageError where nothing can, EngineError where measuring fails."""
    measured = await measured_for(options) if options.measure else None
    lines = advice(question_of(options, None if measured is None else measured.facts), is_measured=options.measure)
    for line in (*lines, *(() if measured is None else bound_lines(measured.document))):
        sys.stdout.write(f"{line}\n")
    return 0


async def measured_for(options: AdviseOptions) -> Measured:
    """Measure what the options ask for, and write it down where they say so. Raises UsageError and EngineError."""
    question_of(options, _NOT_YET)  # what cannot be answered is not measured first
    steps = None if options.source is None else _steps(options.source)
    layer = {name: getattr(options, name) for name in LayerOptions.model_fields}
    chosen = kernel_options({**layer, "model": None if options.model is None else str(options.model)})
    if options.output is not None:
        RunStore(options.output).check_unused()
    folder = options.output or Path(tempfile.mkdtemp(prefix="slo-bench-"))

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - a minute is long without a word

    found = await measure(
        chosen, place_for(options.vllm_python, folder), say, served=_served(steps), slope=_slope(options.source)
    )
    if options.output is None:
        shutil.rmtree(folder)  # a failure names a log in it, so it stays then
    else:
        write_text(folder / "advice.json", to_json(found.document))
        write_text(folder / KERNELS_NAME, to_json(found.document.kernels))
        say(f"wrote {folder / 'advice.json'}")
    return found


def _served(steps: Histogram | None) -> tuple[int, ...]:
    """The measured sizes that stand for the steps that a run had most often."""
    if steps is None or not steps.count:
        return ()
    bands = sorted(bands_of(steps, most_tokens=SERVER_TOKENS), key=lambda band: -band.steps)[:_BANDS]
    return tuple(
        size for size in SIZES if any(band.lowest <= size and (band.highest or size) >= size for band in bands)
    )


def _slope(source: Path | None) -> float | None:
    path = None if source is None else source / "sweep.json"
    return tpot_slope(read_document(path, SweepDocument)) if path is not None and path.is_file() else None


def question_of(options: AdviseOptions, seen: BenchFacts | None = None) -> Question:
    """What the options, a log and a run's metrics say together. seen: the GPU and vLLM here. Raises UsageError."""
    facts = _facts(options)
    steps = None if options.source is None else _steps(options.source)
    used, missed = _told(facts)
    names = tuple(dict.fromkeys(PurePath(path).name for path in (*used, *missed)))
    layer = options.layer()
    if not names:
        if layer is None:
            raise UsageError(
                "no log names a MoE file that vLLM looked for; give --model FOLDER, --device NAME and --vllm-version V"
            )
        names = _computed(options, facts, layer, seen)
    elif options.model is not None:
        layer = _agreeing(read_model(options.model), names)
    elif layer is not None:
        _check(layer[0], names)
    shape, quantisation = layer or (None, None)
    # On the server's own machine the log says where it looks.
    told = dict.fromkeys(Path(path).parent for path in (*missed, *used))
    folders = tuple(map(Path, options.folder)) or tuple(folder for folder in told if folder.is_dir())
    if not folders and seen is not None and seen.config_folder is not None:
        mine = os.environ.get(FOLDER_NAME)
        folders = (*((Path(mine),) if mine else ()), seen.config_folder)
    return Question(names, used, facts, folders, shape, quantisation, steps)


def _facts(options: AdviseOptions) -> LogFacts | None:
    if options.warning is not None:
        # People paste it with prefixes and line breaks of their own.
        said = " ".join(options.warning.split())
        facts = log_facts(said[max(0, said.find(_WARNING)) :])
        if not facts.moe_lookups:
            raise UsageError(f"--warning holds no {_WARNING!r}; give the whole line of vLLM's log")
        return facts
    if options.source is None:
        return None
    log = options.source / "engine.log" if options.source.is_dir() else options.source
    if options.source.is_dir() and not log.exists():
        return None
    try:
        # Line ends as they are: they tell the lines of one message from the next message.
        return log_facts(log.read_bytes().decode("utf-8", errors="replace"))
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise UsageError(f"{log}: {reason}; give vLLM's log or a run directory") from error


def _steps(source: Path) -> Histogram | None:
    """Tokens per step between the first and the last look of a run at the server; None where they are not known."""
    engine, metrics = source / "engine.json", source / "metrics.parquet"
    if not source.is_dir():
        return None
    if engine.exists() and read_document(engine, EngineDocument).kind == "simulated":
        raise UsageError(f"{source} is of the simulated engine, which has no MoE kernel; give a run on vLLM")
    if not metrics.exists():
        return None
    samples = read_metrics(metrics).samples
    return difference(samples[0], samples[-1]).step_tokens if samples else None


def _told(facts: LogFacts | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that a log says were read, and the paths at which none was found."""
    lookups = () if facts is None else facts.moe_lookups
    used = tuple(dict.fromkeys(each.used for each in lookups if each.used))
    return used, tuple(dict.fromkeys(path for each in lookups for path in each.asked))


def _computed(
    options: AdviseOptions, facts: LogFacts | None, layer: tuple[MoeShape, Quantisation], seen: BenchFacts | None
) -> tuple[str, ...]:
    version = options.vllm_version or (None if facts is None else facts.version)
    version = version or (None if seen is None else seen.versions["vllm"])
    device = options.device or (None if seen is None else seen.device)
    if device is None or version is None:
        raise UsageError("the file depends on GPU and release: give --device 'NVIDIA H200' and --vllm-version 0.24.0")
    return rank_names(*layer, device, parse_version(version))


def _agreeing(model: MoeModel, names: tuple[str, ...]) -> tuple[MoeShape, Quantisation]:
    """The model's layer as the server that asked for these files holds it."""
    keys = [key for name in names if (key := parse_name(name)) is not None]
    shapes = [(shape, key.quantisation) for key in keys if (shape := served_shape(model, key)) is not None]
    if not shapes:
        raise UsageError(
            f"vLLM looked for {names[0]}, which no parallelism makes of this model (E={model.experts}, "
            f"N={model.intermediate}): give the model that it serves"
        )
    return shapes[0]


def _check(shape: MoeShape, names: tuple[str, ...]) -> None:
    held = {len(shape.held_by(rank)) for rank in range(shape.ep_size)}
    keys: list[FileKey] = [key for name in names if (key := parse_name(name)) is not None]
    if not any(key.experts in held and key.columns == shape.columns for key in keys):
        raise UsageError(f"vLLM looked for {names[0]}, which is not the file of this --shape: E and N must agree")
