"""Requests as long as those of a trace, in its order; with the prompt blocks that they share where it has hashes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traffic.prompts import TextKey, TokenRatio, prompts, sentences
from traffic.records import Message
from traffic.traces import Trace
from traffic.workload import Lengths, check_scale


@dataclass(frozen=True, slots=True)
class Traced:
    """A trace's requests, one after another from a row that (seed, repeat) chooses, and again from its beginning.

    The row is the one at which `traffic.arrivals.Replay` of this trace starts: with both, each request keeps its own
    time. cut_tokens: longer prompts are cut to this length; None leaves them.
    """

    trace: Trace
    cut_tokens: int | None = None

    @property
    def name(self) -> str:
        """The trace's, and where prompts are cut."""
        return self.trace.name if self.cut_tokens is None else f"{self.trace.name}-cut-{self.cut_tokens}"

    @property
    def source(self) -> str:
        """The trace in numbers, and the share of its prompts that are cut."""
        inputs, outputs = self.trace.input_tokens, self.trace.output_tokens
        said = f"{len(inputs):,} requests, mean {inputs.mean():,.0f} tokens in and {outputs.mean():,.0f} out"
        if self.cut_tokens is None:
            return said
        share = float((inputs > self.cut_tokens).mean())
        return f"{said}; {share:.1%} of the prompts cut to {self.cut_tokens:,} tokens".replace("%", " %")

    @property
    def kinds(self) -> tuple[str, ...]:
        """A trace does not tell its requests apart."""
        return (self.trace.name,)

    @property
    def max_input_tokens(self) -> int:
        """The trace's longest prompt, or where prompts are cut."""
        longest = int(self.trace.input_tokens.max())
        return longest if self.cut_tokens is None else min(longest, self.cut_tokens)

    @property
    def max_output_tokens(self) -> int:
        """The trace's longest answer."""
        return int(self.trace.output_tokens.max())

    def draw(self, seed: int, repeat: int, n: int, length_scale: float = 1.0) -> Lengths:
        """The lengths of the first n requests."""
        check_scale(length_scale)
        _, start = self.trace.start(seed, repeat)
        count = len(self.trace.times_s)
        rows = (start + np.arange(n)) % count
        places = rows + count * (np.arange(n) // count)
        input_tokens = _scaled(np.minimum(self.trace.input_tokens[rows], self.max_input_tokens), length_scale)
        shared_tokens = np.zeros(n, dtype=np.int64)
        if self.trace.blocks is not None:
            blocks = np.array(self._blocks_seen_before(places.tolist()), dtype=np.int64)
            shared_tokens = np.minimum(np.rint(blocks * self.trace.block_tokens * length_scale), input_tokens)
        return Lengths(
            kinds=np.zeros(n, dtype=np.int64),
            input_tokens=input_tokens,
            output_tokens=_scaled(self.trace.output_tokens[rows], length_scale),
            shared_tokens=shared_tokens.astype(np.int64),
            rows=places,
            length_scale=length_scale,
        )

    def _hashes(self, place: int) -> list[tuple[int, int]]:
        """The blocks of the request at a place, as `Lengths.rows` counts them.

        Each round of the trace has its own: the same requests again would be found whole in a cache.
        """
        blocks = self.trace.blocks or ()
        lap, row = divmod(place, len(blocks))
        kept = len(blocks[row]) if self.cut_tokens is None else math.ceil(self.cut_tokens / self.trace.block_tokens)
        return [(lap, each) for each in blocks[row][:kept]]

    def _blocks_seen_before(self, places: list[int]) -> list[int]:
        """For each request, how many of its first blocks an earlier one of these has begun with."""
        known: dict[tuple[int, tuple[int, int]], int] = {}
        counts = []
        for place in places:
            node, seen = 0, 0
            for block in self._hashes(place):
                if (node, block) in known:
                    seen += 1
                node = known.setdefault((node, block), len(known) + 1)
            counts.append(seen)
        return counts

    def texts(self, lengths: Lengths, ratio: TokenRatio, key: TextKey) -> list[tuple[Message, ...]]:
        """Sentences; where the trace has hashes each block's text comes from its hash and the key alone."""
        inputs = lengths.input_tokens.tolist()
        if self.trace.blocks is None or lengths.rows is None:
            return prompts([self.trace.name] * len(inputs), inputs, ratio, key)
        return [
            (Message("user", self._text(place, lengths.length_scale, ratio.words(tokens), ratio, key)),)
            for place, tokens in zip(lengths.rows.tolist(), inputs, strict=True)
        ]

    def _text(self, place: int, length_scale: float, total: int, ratio: TokenRatio, key: TextKey) -> str:
        """A prompt of `total` words out of its blocks, each as long as its place asks whatever the prompt's length."""
        block_words = self.trace.block_tokens * length_scale / ratio.tokens_per_word
        text: list[str] = []
        blocks = self._hashes(place)
        for number, (lap, block) in enumerate(blocks, start=1):
            end = total if number == len(blocks) else min(round(number * block_words), total)
            text += sentences(key.shared("block", lap, block), math.ceil(block_words) + 2)[: end - len(text)]
        return " ".join(text)


def _scaled(tokens: npt.NDArray[np.int64], length_scale: float) -> npt.NDArray[np.int64]:
    scaled: npt.NDArray[np.int64] = np.rint(tokens * length_scale).astype(np.int64)
    return np.maximum(1, scaled)
