"""What can be said of vLLM's MoE warning without a GPU, and what cannot: facts in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath

from slo_bench.hosts.log_facts import LogFacts
from slo_bench.hosts.moe_proof import FILE_READERS, far_sizes, name_differences
from slo_bench.moe.config_files import ConfigFile, FileKey, read_config, shipped_or_tuned
from slo_bench.moe.coverage import MOST_TOKENS, Coverage, bands_of, coverage
from slo_bench.moe.shape import MoeModel, MoeShape, Quantisation
from slo_bench.moe.work import expected_hit, expert_bytes
from traffic.server_facts import Histogram

SERVER_TOKENS = 8192
"""max_num_batched_tokens of vLLM's server on a large card, where the log does not say."""

_UNMEASURED = (
    "not known without measuring on the GPU: how far the kernel is from its limit, and so whether tuning gains "
    "anything; slo-bench advise --measure tells in a minute, slo-bench compare shows what a file changes for requests"
)
_SHOWN = 3
_SHOWN_SIZES = (1, 16, 64, 256)


@dataclass(frozen=True, slots=True)
class Question:
    """What is known of a server.

    names: of the files that its ranks look for. used: the files that its log says it read. facts: of the log. folders:
    where files may be, in vLLM's order. shape and quantisation: of the layer. steps: tokens per engine step in a run.
    """

    names: tuple[str, ...]
    used: tuple[str, ...] = ()
    facts: LogFacts | None = None
    folders: tuple[Path, ...] = ()
    shape: MoeShape | None = None
    quantisation: Quantisation | None = None
    steps: Histogram | None = None

    @property
    def most_tokens(self) -> int:
        """The largest step that the server makes."""
        told = None if self.facts is None else self.facts.max_num_batched_tokens
        return SERVER_TOKENS if told is None else min(told, MOST_TOKENS)


def advice(question: Question, *, is_measured: bool = False) -> tuple[str, ...]:
    """Everything that can be said, a finding a line. is_measured: what is measured is said elsewhere.

    Raises UsageError for a broken file.
    """
    lines = [*_backends(question.facts)]
    for name in question.names:
        lines += [f"vLLM looks for {name}", *_file(question, name)]
    lines += [*_steps(question.steps, question.most_tokens), *_work(question), *_unknown(question)]
    if not is_measured:
        lines.append(_UNMEASURED)
    return tuple(lines)


def served_shape(model: MoeModel, key: FileKey) -> MoeShape | None:
    """How a model must be spread over ranks for one of them to look for a file of this key; None when no way is known.

    Copies of experts that a load balancer keeps are not considered.
    """
    if key.experts == model.experts and model.intermediate % key.columns == 0:
        return model.shape(ranks=model.intermediate // key.columns)
    if key.columns != model.intermediate or not 0 < key.experts < model.experts:
        return None
    for ranks in {model.experts // key.experts, -(-model.experts // key.experts)}:
        shape = model.shape(ranks=ranks, is_expert_parallel=True)
        if key.experts in {len(shape.held_by(rank)) for rank in range(ranks)}:
            return shape
    return None


def _backends(facts: LogFacts | None) -> Iterator[str]:
    """Whether anything reads the file at all."""
    for backend in () if facts is None else facts.moe_backends:
        if backend.name.upper() in FILE_READERS:
            yield f"the {backend.kind} MoE backend is {backend.name}, which reads such files"
        else:
            yield (
                f"the {backend.kind} MoE backend is {backend.name}, which reads no such file: a tuned one would change "
                "nothing in these layers"
            )


def _file(question: Question, name: str) -> Iterator[str]:
    """Whether the file is there, what it covers, and what the server made of it."""
    used = next((path for path in question.used if PurePath(path).name == name), None)
    missed = _missed(question.facts, name)
    path = shipped_or_tuned(name, question.folders)
    if used is not None:
        yield f"vLLM said that it read {used}"
        path = Path(used) if Path(used).is_file() else path
    elif missed:
        yield "vLLM said that it found none: it ran its default configuration for every batch size"
    if path is not None:
        yield from _found(question, path, read_config(path))
        if missed and used is None:
            setting = "" if str(path) in missed else f" with VLLM_TUNED_CONFIG_FOLDER={path.parent}"
            yield f"vLLM did not find it at its start; to have it read, start the server again{setting}"
    elif used is not None:
        yield "what that file holds is not known here: name a folder that has it with --folder"
    elif question.folders:
        yield (
            f"it is not in {' or '.join(map(str, question.folders))}: a server that reads no other folder runs its "
            "default configuration for every batch size"
        )
        yield from _near_misses(name, question.folders)
    elif not missed:
        yield "whether it finds one is not known here: name the folders that it reads with --folder"


def _missed(facts: LogFacts | None, name: str) -> tuple[str, ...]:
    """Where the server looked for a file of this name and found none."""
    lookups = () if facts is None else facts.moe_lookups
    return tuple(path for lookup in lookups for path in lookup.asked if PurePath(path).name == name)


def _found(question: Question, path: Path, config: ConfigFile) -> Iterator[str]:
    """What a file covers: of all steps that the server can make, and of those that a run made."""
    sizes = tuple(config.entries)
    tuned_by = "an unknown Triton" if config.triton_version is None else f"Triton {config.triton_version}"
    yield f"{path} has {len(sizes)} batch sizes, {_some(sizes)}, tuned with {tuned_by}; vLLM does not compare versions"
    if config.unknown:
        yield f"it also has {', '.join(map(repr, config.unknown))}, on which vLLM fails: remove them"
    if not sizes:
        yield "it has no batch size: tune again"
        return
    far = far_sizes(sizes, range(1, question.most_tokens + 1))
    for key, served in far.items():
        yield f"steps of {_ranges(served)} tokens run the entry for {key}, which is far from them"
    if not far:
        yield f"every step of up to {question.most_tokens} tokens is within a factor of two of a batch size in it"
    if question.steps is not None and question.steps.count:
        captured = () if question.facts is None else question.facts.capture_sizes or ()
        bands = bands_of(question.steps, most_tokens=question.most_tokens)
        yield _far_share(coverage(sizes, bands, capture_sizes=captured))


def _far_share(covered: Coverage) -> str:
    least, most = covered.far_share or (0.0, 0.0)
    share = f"{most:.0%}" if least == most else f"{least:.0%} to {most:.0%}"
    return f"in the run, {share} of {covered.steps} steps were far from the entry that they ran"


def _near_misses(name: str, folders: Sequence[Path]) -> Iterator[str]:
    """The files there that a slip in one part of their name would explain; another GPU's is none."""
    near: dict[str, dict[str, tuple[str, str]]] = {}
    for folder in folders:
        with suppress(OSError):
            for path in folder.iterdir():
                parts = name_differences(name, path.name)
                if parts is not None and len(parts) == 1 and _is_slip(*next(iter(parts.items()))):
                    near[path.name] = parts
    for other in sorted(near)[:_SHOWN]:
        ((part, (have, want)),) = near[other].items()
        yield f"{other} there is not read: {part} is {have} instead of {want}"


def _is_slip(part: str, pair: tuple[str, str]) -> bool:
    have, want = pair
    return part != "device_name" or have.startswith(want) or want.startswith(have)


def _steps(steps: Histogram | None, most_tokens: int) -> Iterator[str]:
    """The batch sizes that a run had most often."""
    if steps is None or not steps.count:
        return
    bands = sorted(bands_of(steps, most_tokens=most_tokens), key=lambda band: -band.steps)[:_SHOWN]
    shown = ", ".join(f"{_between(band.lowest, band.highest)} ({band.steps / steps.count:.0%})" for band in bands)
    yield f"the run made {steps.count} steps of {steps.mean:.4g} tokens on average; the most frequent sizes: {shown}"


def _work(question: Question) -> Iterator[str]:
    """How much the kernel must read: two routings, never averaged."""
    shape, quantisation = question.shape, question.quantisation
    if shape is None or quantisation is None:
        return
    share = len(shape.held_by(0)) / shape.experts
    each_mb = expert_bytes(shape, quantisation) / 1e6
    for tokens in _SHOWN_SIZES:
        hit, few = expected_hit(tokens, shape) * share, min(shape.top_k, len(shape.held_by(0)))
        yield (
            f"{tokens} token{'s' if tokens > 1 else ''}: a rank reads {hit:.0f} experts of a layer on average under "
            f"uniform routing ({hit * each_mb:.0f} MB), {few} where all tokens go to the same ({few * each_mb:.0f} MB)"
        )


def _unknown(question: Question) -> Iterator[str]:
    """What these sources cannot tell, each with what would."""
    if question.facts is None or not (question.facts.moe_backends or question.facts.moe_lookups):
        yield (
            "not known without vLLM's log: whether its MoE backend reads such files; TRITON does, but for FP8 under "
            "expert parallelism on Hopper vLLM prefers FLASHINFER_CUTLASS, which does not"
        )
    if question.shape is None:
        yield "not known without the model (--model FOLDER or --shape): how much the kernel has to read"
    if question.steps is None:
        yield "not known without a run (its directory): which batch sizes the server really runs"


def _ranges(sizes: Iterable[int]) -> str:
    """Ascending whole numbers as ranges: 1-47, 2049-8192."""
    ordered = list(sizes)
    starts = [ordered[0], *(right for left, right in pairwise(ordered) if right != left + 1)]
    ends = [*(left for left, right in pairwise(ordered) if right != left + 1), ordered[-1]]
    return ", ".join(_between(start, end) for start, end in zip(starts, ends, strict=True))


def _between(lowest: int, highest: int | None) -> str:
    if highest is None:
        return f"{lowest} or more"
    return str(lowest) if lowest == highest else f"{lowest}-{highest}"


def _some(sizes: Sequence[int]) -> str:
    return str(min(sizes)) + (f" to {max(sizes)}" if len(sizes) > 1 else "") if sizes else "none"
