"""A system message that every prompt begins with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from traffic.errors import UsageError
from traffic.prompts import TextKey, TokenRatio, sentences
from traffic.records import Message
from traffic.workload import Lengths, Workload

LEAST_FRESH_TOKENS = 16
"""A prompt drawn too short for the prefix is this much longer than it: a cache block of its own."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A workload whose prompts all begin with the same prefix_tokens tokens; a prompt's length includes them.

    The text is one per probe and new in the next.
    """

    workload: Workload
    prefix_tokens: int

    def __post_init__(self) -> None:
        """Raise UsageError for a prefix that the workload's prompts cannot hold."""
        most = self.workload.max_input_tokens - LEAST_FRESH_TOKENS
        if not 1 <= self.prefix_tokens <= most:
            raise UsageError(
                f"prompts of {self.workload.name} have room for a shared prefix of 1 to {most} tokens, "
                f"not {self.prefix_tokens}"
            )

    @property
    def name(self) -> str:
        """The workload's, and the prefix."""
        return f"{self.workload.name}+prefix-{self.prefix_tokens}"

    @property
    def source(self) -> str:
        """The workload's, and the prefix."""
        return f"{self.workload.source}; every prompt begins with the same {self.prefix_tokens:,} tokens"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The workload's."""
        return self.workload.kinds

    @property
    def max_input_tokens(self) -> int:
        """The workload's: the prefix is part of the prompt."""
        return self.workload.max_input_tokens

    @property
    def max_output_tokens(self) -> int:
        """The workload's."""
        return self.workload.max_output_tokens

    def draw(self, seed: int, repeat: int, n: int, length_scale: float = 1.0) -> Lengths:
        """The workload's lengths; prompts too short for the prefix are longer, and all but the first share it."""
        lengths = self.workload.draw(seed, repeat, n, length_scale)
        least = round((self.prefix_tokens + LEAST_FRESH_TOKENS) * length_scale)
        return replace(
            lengths,
            input_tokens=np.maximum(lengths.input_tokens, least),
            shared_tokens=np.where(np.arange(n) > 0, self._scaled(length_scale), 0).astype(np.int64),
        )

    def _scaled(self, length_scale: float) -> int:
        return round(self.prefix_tokens * length_scale)

    def texts(self, lengths: Lengths, ratio: TokenRatio, key: TextKey) -> list[tuple[Message, ...]]:
        """The workload's prompts, shorter by the prefix, after the system message."""
        prefix_tokens = self._scaled(lengths.length_scale)
        words = max(1, round(prefix_tokens / ratio.tokens_per_word))
        system = Message("system", " ".join(sentences(key.shared("prefix"), words)))
        rest = self.workload.texts(replace(lengths, input_tokens=lengths.input_tokens - prefix_tokens), ratio, key)
        return [(system, *messages) for messages in rest]
