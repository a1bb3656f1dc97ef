"""Decode steps of a model: the CUDA graph of a step that vLLM's engine really made, replayed alone.

The engine decodes a batch of the wanted size; the graph that its last step replayed still finds that step's inputs
where they were. Replayed again between two events, it is the step on the GPU, without the engine's work on the CPU.
Sampling is no part of the graph, nor are the logits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from vllm import LLM, SamplingParams

from .serving import RefusedError

_ANSWER = 6
"""Tokens of an answer: the first comes of the prompt's step, the last of a step in which all requests are decoded."""

_ROOM = 64
_MEMORY_SHARE = 0.2
"""What must be free at the start; how much is taken follows from the model."""

_WARM = 3


class StepModel:
    """A model with random weights in an engine of this process. context: tokens of each request before its answer."""

    def __init__(self, *, model: str, sizes: Sequence[int], context: int, vocabulary: int, kv_bytes: int) -> None:
        self._context, self._vocabulary = context, vocabulary
        most = max(sizes)
        try:
            self._llm = LLM(
                model=model,
                skip_tokenizer_init=True,
                load_format="dummy",
                moe_backend="triton",
                max_model_len=context + _ROOM,
                max_num_seqs=most,
                max_num_batched_tokens=most * context,  # so that all prompts are one step, and all answers end together
                enable_prefix_caching=False,
                gpu_memory_utilization=_MEMORY_SHARE,
                kv_cache_memory_bytes=kv_bytes,
                # torch.compile alone would take most of the time: some small kernels stay unfused.
                compilation_config={
                    "mode": 0,
                    "cudagraph_mode": "FULL_DECODE_ONLY",
                    "cudagraph_capture_sizes": sorted(sizes),
                },
                seed=0,
            )
        except torch.OutOfMemoryError:
            raise RefusedError("CUDA out of memory: the model of some layers does not fit beside what runs") from None

    def decode(self, tokens: int, *, is_concentrated: bool) -> list[torch.cuda.CUDAGraph]:
        """Answer a batch; the graphs that were replayed, in order.

        With the same prompt everywhere all tokens of a step are the same, and so are their experts.
        """
        random = np.random.default_rng(tokens)
        prompts = random.integers(0, self._vocabulary, size=(1 if is_concentrated else tokens, self._context))
        batch: list[Any] = [{"prompt_token_ids": prompts[each % len(prompts)].tolist()} for each in range(tokens)]
        params = SamplingParams(temperature=0.0, max_tokens=_ANSWER, ignore_eos=True, detokenize=False)
        with _replayed() as graphs:
            self._llm.generate(batch, params, use_tqdm=False)
        return graphs


def time_steps(
    model: StepModel, *, steps: Sequence[dict[str, Any]], rounds: int, replays: int, tell: Callable[[int], None]
) -> list[list[float]]:
    """Seconds per step, one value a round, for each {"tokens", "is_concentrated"}, in the order given."""
    answers = []
    for number, step in enumerate(steps):
        graphs = model.decode(step["tokens"], is_concentrated=step["is_concentrated"])
        # An engine that plans ahead may make one step more.
        if len(set(graphs)) != 1 or len(graphs) not in (_ANSWER - 1, _ANSWER):
            raise RefusedError(
                f"decode steps of {step['tokens']} tokens are not one CUDA graph in this vLLM: {len(set(graphs))} were "
                f"replayed {len(graphs)} times in {_ANSWER - 1} steps"
            )
        answers.append(_times(graphs[-1], rounds, replays))
        tell(number + 1)
    return answers


def _times(graph: torch.cuda.CUDAGraph, rounds: int, replays: int) -> list[float]:
    torch.cuda.synchronize()
    gc.disable()
    try:
        for _ in range(_WARM):
            graph.replay()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
        marks[0].record()
        for mark in marks[1:]:
            for _ in range(replays):
                graph.replay()
            mark.record()
        torch.cuda.synchronize()
    finally:
        gc.enable()
    return [before.elapsed_time(after) / 1e3 / replays for before, after in pairwise(marks)]


@contextmanager
def _replayed() -> Iterator[list[torch.cuda.CUDAGraph]]:
    """Every graph that is replayed inside, in order."""
    replay = torch.cuda.CUDAGraph.replay
    graphs: list[torch.cuda.CUDAGraph] = []

    def noted(self: torch.cuda.CUDAGraph) -> None:
        graphs.append(self)
        replay(self)

    torch.cuda.CUDAGraph.replay = noted
    try:
        yield graphs
    finally:
        torch.cuda.CUDAGraph.replay = replay
