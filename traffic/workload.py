"""What requests are made of: the port, the default chat mix, and fixed lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from traffic.errors import UsageError
from traffic.prompts import HISTORY, TextKey, TokenRatio, prompts
from traffic.randomness import first, stream
from traffic.records import Message


@dataclass(frozen=True, slots=True)
class Lengths:
    """Drawn lengths of n requests; arrays of shape (n,).

    kinds: index into the workload's kinds. input_tokens: the whole prompt. shared_tokens: how many of these an earlier
    request of the same schedule has as a prefix. rows: index of the row of the trace or data set that a request
    came from, plus their number for each whole round before; None where there are no rows. length_scale: the factor
    that they were drawn with.
    """

    kinds: npt.NDArray[np.int64]
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    shared_tokens: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64] | None = None
    length_scale: float = 1.0

    def part(self, start: int, stop: int) -> Lengths:
        """The requests from start up to, not including, stop."""
        inside = slice(start, stop)
        return replace(
            self,
            kinds=self.kinds[inside],
            input_tokens=self.input_tokens[inside],
            output_tokens=self.output_tokens[inside],
            shared_tokens=self.shared_tokens[inside],
            rows=None if self.rows is None else self.rows[inside],
        )


class Workload(Protocol):
    """What requests are made of: a source of lengths and of text."""

    @property
    def name(self) -> str:
        """One word for file names and tables."""
        ...

    @property
    def source(self) -> str:
        """Where the lengths come from, in one sentence without an end."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the request classes."""
        ...

    @property
    def max_input_tokens(self) -> int:
        """The longest prompt that can be drawn, before scaling."""
        ...

    @property
    def max_output_tokens(self) -> int:
        """The longest answer that can be asked for, before scaling."""
        ...

    def draw(self, seed: int, repeat: int, n: int, length_scale: float = 1.0) -> Lengths:
        """The lengths of the first n requests, from (seed, repeat) alone: every rate and arm sees the same.

        Raises UsageError for a length scale that is not positive.
        """
        ...

    def texts(self, lengths: Lengths, ratio: TokenRatio, key: TextKey) -> list[tuple[Message, ...]]:
        """The prompts of requests that `draw` gave, one each."""
        ...


def scaled_max(workload: Workload, length_scale: float) -> tuple[int, int]:
    """The largest prompt and answer, in tokens, after scaling."""
    return (
        max(1, round(workload.max_input_tokens * length_scale)),
        max(1, round(workload.max_output_tokens * length_scale)),
    )


def check_scale(length_scale: float) -> None:
    """Raise UsageError for a length scale that is not positive."""
    if not length_scale > 0:
        raise UsageError(f"the length scale must be positive, not {length_scale}")


@dataclass(frozen=True, slots=True)
class LengthClass:
    """One kind of request: log-normal lengths in tokens, given as median and sigma of the logarithm.

    share: of all requests. A sigma of 0 is a fixed length.
    """

    name: str
    share: float
    input_median_tokens: float
    input_sigma: float
    output_median_tokens: float
    output_sigma: float


@dataclass(frozen=True, slots=True)
class Mixture:
    """A seeded mixture of length classes, with the largest lengths that it can draw (tokens)."""

    name: str
    classes: tuple[LengthClass, ...]
    max_input_tokens: int
    max_output_tokens: int
    source: str

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(each.name for each in self.classes)

    def draw(self, seed: int, repeat: int, n: int, length_scale: float = 1.0) -> Lengths:
        """The lengths of the first n requests.

        Each request uses exactly three uniform draws (class, prompt, answer), turned into lengths by the inverse
        distribution function: changing one class's parameters moves no other request.
        """
        check_scale(length_scale)
        generator = stream("lengths", seed, repeat)
        uniform = first(n, lambda size: generator.random((size, 3)))
        shares = np.cumsum([each.share for each in self.classes])
        kinds = np.minimum(np.searchsorted(shares / shares[-1], uniform[:, 0], side="right"), len(shares) - 1)

        def tokens(medians: list[float], sigmas: list[float], column: int, most: int) -> npt.NDArray[np.int64]:
            drawn = np.array(medians)[kinds] * np.exp(np.array(sigmas)[kinds] * ndtri(uniform[:, column]))
            scaled: npt.NDArray[np.int64] = np.rint(np.clip(drawn, 1, most) * length_scale).astype(np.int64)
            return np.maximum(1, scaled)

        return Lengths(
            kinds=kinds,
            input_tokens=tokens(
                [each.input_median_tokens for each in self.classes],
                [each.input_sigma for each in self.classes],
                1,
                self.max_input_tokens,
            ),
            output_tokens=tokens(
                [each.output_median_tokens for each in self.classes],
                [each.output_sigma for each in self.classes],
                2,
                self.max_output_tokens,
            ),
            shared_tokens=np.zeros(n, dtype=np.int64),
            length_scale=length_scale,
        )

    def texts(self, lengths: Lengths, ratio: TokenRatio, key: TextKey) -> list[tuple[Message, ...]]:
        """Prompts in the shape of their class; no two begin alike."""
        kinds = self.kinds
        return prompts([kinds[index] for index in lengths.kinds.tolist()], lengths.input_tokens.tolist(), ratio, key)


CHAT_MIX = Mixture(
    name="chat-mix",
    # Fitted by least squares on the logarithms of eight quantiles (5 % to 99 %), means and medians of the trace.
    classes=(
        LengthClass("short turn", 0.30, 275, 0.50, 86, 0.55),
        LengthClass(HISTORY, 0.33, 1200, 0.18, 120, 0.60),
        LengthClass("document question", 0.12, 3200, 0.29, 94, 0.60),
        LengthClass("long answer", 0.25, 890, 0.60, 470, 0.13),
    ),
    max_input_tokens=8192,
    max_output_tokens=1000,
    source=(
        "Azure LLM inference trace 2023, conversation service (Patel et al., Splitwise, ISCA 2024): 19,366 requests, "
        "mean 1,155 and median 1,020 tokens in, mean 211 and median 129 tokens out"
    ),
)


def fixed_lengths(input_tokens: int, output_tokens: int) -> Mixture:
    """Every request alike: the peers' fixed-length workload."""
    if input_tokens < 1 or output_tokens < 1:
        raise UsageError(f"lengths must be at least 1 token, not {input_tokens} in and {output_tokens} out")
    return Mixture(
        name=f"fixed-{input_tokens}-{output_tokens}",
        classes=(LengthClass("fixed", 1.0, input_tokens, 0.0, output_tokens, 0.0),),
        max_input_tokens=input_tokens,
        max_output_tokens=output_tokens,
        source="fixed lengths",
    )
