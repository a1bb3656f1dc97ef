"""How long prompts and answers are: the default chat mix, and fixed lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from traffic.errors import UsageError
from traffic.randomness import first, stream


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
class Workload:
    """A seeded mixture of length classes, with the largest lengths that it can draw (tokens)."""

    name: str
    classes: tuple[LengthClass, ...]
    max_input_tokens: int
    max_output_tokens: int
    source: str

    def scaled_max(self, length_scale: float) -> tuple[int, int]:
        """The largest prompt and answer, in tokens, after scaling."""
        return (
            max(1, round(self.max_input_tokens * length_scale)),
            max(1, round(self.max_output_tokens * length_scale)),
        )


CHAT_MIX = Workload(
    name="chat-mix",
    # Fitted by least squares on the logarithms of eight quantiles (5 % to 99 %), means and medians of the trace.
    classes=(
        LengthClass("short turn", 0.30, 275, 0.50, 86, 0.55),
        LengthClass("turn with history", 0.33, 1200, 0.18, 120, 0.60),
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


def fixed_lengths(input_tokens: int, output_tokens: int) -> Workload:
    """Every request alike: the peers' fixed-length workload."""
    if input_tokens < 1 or output_tokens < 1:
        raise UsageError(f"lengths must be at least 1 token, not {input_tokens} in and {output_tokens} out")
    return Workload(
        name=f"fixed-{input_tokens}-{output_tokens}",
        classes=(LengthClass("fixed", 1.0, input_tokens, 0.0, output_tokens, 0.0),),
        max_input_tokens=input_tokens,
        max_output_tokens=output_tokens,
        source="fixed lengths",
    )


@dataclass(frozen=True, slots=True)
class Lengths:
    """Drawn lengths of n requests: class index into the workload, prompt and answer tokens; arrays of shape (n,)."""

    kinds: npt.NDArray[np.int64]
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]


def draw_lengths(workload: Workload, seed: int, repeat: int, n: int, length_scale: float = 1.0) -> Lengths:
    """The lengths of the first n requests; they depend on (seed, repeat) alone, so every rate and arm sees the same.

    Each request uses exactly three uniform draws (class, prompt, answer), turned into lengths by the inverse
    distribution function: changing one class's parameters moves no other request.
    """
    if not length_scale > 0:
        raise UsageError(f"the length scale must be positive, not {length_scale}")
    generator = stream("lengths", seed, repeat)
    uniform = first(n, lambda size: generator.random((size, 3)))
    shares = np.cumsum([each.share for each in workload.classes])
    kinds = np.minimum(np.searchsorted(shares / shares[-1], uniform[:, 0], side="right"), len(shares) - 1)

    def tokens(medians: list[float], sigmas: list[float], column: int, most: int) -> npt.NDArray[np.int64]:
        drawn = np.array(medians)[kinds] * np.exp(np.array(sigmas)[kinds] * ndtri(uniform[:, column]))
        scaled: npt.NDArray[np.int64] = np.rint(np.clip(drawn, 1, most) * length_scale).astype(np.int64)
        return np.maximum(1, scaled)

    return Lengths(
        kinds=kinds,
        input_tokens=tokens(
            [each.input_median_tokens for each in workload.classes],
            [each.input_sigma for each in workload.classes],
            1,
            workload.max_input_tokens,
        ),
        output_tokens=tokens(
            [each.output_median_tokens for each in workload.classes],
            [each.output_sigma for each in workload.classes],
            2,
            workload.max_output_tokens,
        ),
    )
