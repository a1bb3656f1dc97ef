"""How far the mean prompt lies from its target, after calibration and after the correction by the warm-up.

    python benchmarks/prompt_lengths.py TOKENIZER [SEEDS]

TOKENIZER: a folder with tokenizer.json, the file, or a model on the hub. It stands for a server with a chat template of
five tokens a message and three around all; nothing is sent. For each seed the ratio is calibrated and 400 prompts are
made with it; the correction sees 400 others, as of a warm-up.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slo_bench.calibration import corrected, token_ratio
from slo_bench.tokenizer import load_tokenizer
from traffic.chat_dataset import CountTokens
from traffic.prompts import TextKey, TokenRatio
from traffic.records import End, Flight, Message, Request, RequestRecord, freeze
from traffic.workload import CHAT_MIX, Workload, fixed_lengths

PROMPTS = 400
WARM_UP = 1


@dataclass(frozen=True)
class Counting:
    """A running host that counts tokens and does nothing else."""

    tokens: CountTokens
    needs_text: bool = True

    async def count_tokens(self, messages: Sequence[Message]) -> int:
        """What /tokenize would say."""
        return self.count(messages)

    def count(self, messages: Sequence[Message]) -> int:
        """The text's tokens and the template's."""
        return 3 + sum(5 + self.tokens(message.text) for message in messages)


def records(host: Counting, workload: Workload, ratio: TokenRatio, seed: int, repeat: int) -> list[RequestRecord]:
    """Prompts as a window would send them, with the counts of that host."""
    lengths = workload.draw(seed, repeat, PROMPTS)
    texts = workload.texts(lengths, ratio, TextKey(seed, 1, 8.0, repeat))
    made = []
    for index, (messages, meant) in enumerate(zip(texts, lengths.input_tokens.tolist(), strict=True)):
        request = Request(index=index, due_s=0.0, kind="", input_tokens=meant, output_tokens=1)
        made.append(freeze(request, Flight(prompt_tokens=host.count(messages)), 0.0, end=End.FINISHED))
    return made


def deviation(counted: Sequence[RequestRecord]) -> float:
    """Of the mean prompt from its target, per cent."""
    return 100 * (sum(each.prompt_tokens or 0 for each in counted) / sum(each.input_tokens for each in counted) - 1)


async def main() -> None:
    host: Any = Counting(load_tokenizer(sys.argv[1]))
    seeds = range(int(sys.argv[2]) if len(sys.argv) > 2 else 20)  # noqa: PLR2004 - the second argument
    for workload in (CHAT_MIX, fixed_lengths(2048, 64)):
        found: list[tuple[float, float]] = []
        for seed in seeds:
            ratio = await token_ratio(host, workload, seed=seed, length_scale=1.0)
            assert ratio is not None  # noqa: S101 - the host needs text
            better = corrected(ratio, records(host, workload, ratio, seed, WARM_UP))
            found.append(tuple(deviation(records(host, workload, each, seed, 0)) for each in (ratio, better)))  # type: ignore[arg-type]
        for name, column in zip(("calibrated", "corrected"), np.array(found).T, strict=True):
            print(
                f"{workload.name}, {name}: deviation of the mean prompt {np.sqrt(np.mean(column**2)):.2f} % rms, "
                f"{np.abs(column).max():.2f} % at most, over {len(seeds)} seeds"
            )


if __name__ == "__main__":
    asyncio.run(main())
