"""How long a prompt must be in words to be as long as asked in the server's own tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import stdev

import numpy as np

from slo_bench.hosts import RunningHost
from traffic.chat_dataset import ChatDataset, CountTokens
from traffic.errors import EngineError, UsageError
from traffic.prompts import TextKey, TokenRatio, prompt
from traffic.randomness import stream
from traffic.records import End, Flight, Message, Request, RequestRecord
from traffic.workload import Workload, scaled_max

SHORT_WORDS, SHORT_PROMPTS = 8, 3
LEAST_LONG_WORDS, MOST_LONG_WORDS = 16, 2000

COUNTED_TOKENS, MOST_COUNTED = 32_000, 256
"""Prompts of the workload itself are counted up to so many tokens or prompts: the ratio of words that vary by half a
token each is then known to a few tenths of a per cent."""

CALIBRATION_REPEAT = 2_000_000
"""They are drawn here, away from warm-up and measured windows."""

AGREES_SHARE = 0.01
"""A tokenizer that counts a long prompt as the server does, to this share, is the server's."""

CORRECTED_SHARE = 0.002
"""A smaller deviation is not worth a change: equal servers should get equally many words."""

LEAST_CORRECTING = 8
"""Fewer answers tell too little of how far prompts scatter around what was meant."""

CORRECTED_ERRORS = 3
"""Standard errors of the warm-up's own mean that a deviation must exceed. Calibration counted some hundred prompts, a
warm-up often holds thirty: what they differ by is mostly the warm-up's draw, and every start has another one."""


async def token_ratio(
    running: RunningHost, workload: Workload, *, seed: int, length_scale: float, tokenizer: CountTokens | None = None
) -> TokenRatio | None:
    """How words become tokens on this server; None for an engine that needs lengths only.

    Short prompts and a long one give the template's tokens and a rough ratio; with it prompts of the workload are made,
    and counted for the last one. The server counts: at /tokenize where it has that page, else by the usage of one-token
    answers. A tokenizer spares it the workload's prompts; what the server counted beyond it is the template. Every
    server start is asked with the same words, so that equal servers get equal ratios.

    Raises EngineError when the server gives no count, UsageError when the tokenizer is not the server's.
    """
    if not running.needs_text:
        return None
    longest, _ = scaled_max(workload, length_scale)
    # A quarter of the longest prompt fits the context whatever the tokenizer makes of a word.
    long_words = max(LEAST_LONG_WORDS, min(MOST_LONG_WORDS, longest // 4))
    plain = [
        prompt(stream("calibration", seed, number), "calibration", words)
        for number, words in enumerate([SHORT_WORDS] * SHORT_PROMPTS + [long_words])
    ]
    counts = [await _server_count(running, messages) for messages in plain]
    if counts[-1] <= counts[0]:
        raise EngineError(
            f"the server counts {counts[0]} and {counts[-1]} tokens for prompts of {SHORT_WORDS} and {long_words} "
            "words: without a count of its own, prompt lengths would be guesses"
        )
    rough = _fitted([_size(workload, messages) for messages in plain], counts)
    lengths = workload.draw(seed, CALIBRATION_REPEAT, MOST_COUNTED, length_scale)
    enough = 1 + int(np.searchsorted(np.cumsum(lengths.input_tokens), COUNTED_TOKENS))
    drawn = workload.texts(lengths.part(0, enough), rough, TextKey(seed, 0, None, CALIBRATION_REPEAT))
    if tokenizer is None:
        drawn_counts = [await _server_count(running, messages) for messages in drawn]
    else:
        template_tokens = _template_tokens(tokenizer, plain, counts)
        drawn_counts = [_local_count(tokenizer, messages) + template_tokens for messages in drawn]
    text_tokens = sum(drawn_counts) - len(drawn) * rough.overhead_tokens
    return replace(rough, tokens_per_word=text_tokens / sum(_size(workload, messages) for messages in drawn))


def corrected(ratio: TokenRatio, records: Sequence[RequestRecord]) -> TokenRatio:
    """The ratio that would have made these prompts as long as meant, by the server's own counts.

    What calibration cannot see is in them: a usage that counts more than /tokenize, templates between turns. A
    deviation that their own scatter explains changes nothing.
    """
    counted = [(each.prompt_tokens, each.input_tokens) for each in records if each.prompt_tokens is not None]
    if len(counted) < LEAST_CORRECTING:
        return ratio
    template_tokens = ratio.overhead_tokens * len(counted)
    seen, meant = sum(tokens for tokens, _ in counted), sum(tokens for _, tokens in counted)
    noise = CORRECTED_ERRORS * stdev(tokens - target for tokens, target in counted) * math.sqrt(len(counted))
    if min(seen, meant) <= template_tokens or abs(seen - meant) < max(CORRECTED_SHARE * meant, noise):
        return ratio
    return replace(ratio, tokens_per_word=ratio.tokens_per_word * (seen - template_tokens) / (meant - template_tokens))


def _size(workload: Workload, messages: Sequence[Message]) -> int:
    """What the ratio is held against: words, or what a data set counts its rows in."""
    if isinstance(workload, ChatDataset):
        return workload.prompt_size(messages)
    return sum(len(message.text.split()) for message in messages)


def _fitted(sizes: Sequence[int], counts: Sequence[int]) -> TokenRatio:
    """The line through these counts; tokens vary from word to word, so a count's variance grows with its size."""
    per_word, overhead = np.polyfit(sizes, counts, 1, w=1 / np.sqrt(sizes))
    return TokenRatio(tokens_per_word=float(per_word), overhead_tokens=max(0.0, float(overhead)))


def _template_tokens(tokenizer: CountTokens, plain: Sequence[Sequence[Message]], counts: Sequence[int]) -> int:
    """What the server counts beyond the tokenizer; UsageError when that is no constant, as a template would be."""
    *around, around_long = [
        count - _local_count(tokenizer, messages) for messages, count in zip(plain, counts, strict=True)
    ]
    template_tokens = round(sum(around) / len(around))
    if abs(around_long - template_tokens) > AGREES_SHARE * counts[-1] + 1:
        raise UsageError(
            f"--tokenizer is not the server's: it counts {counts[-1] - around_long} tokens in a long prompt and "
            f"{template_tokens} around it, the server {counts[-1]}"
        )
    return template_tokens


def _local_count(tokenizer: CountTokens, messages: Sequence[Message]) -> int:
    return sum(tokenizer(message.text) for message in messages)


async def _server_count(running: RunningHost, messages: tuple[Message, ...]) -> int:
    counted = await running.count_tokens(messages)
    return await _count_by_usage(running, messages) if counted is None else counted


async def _count_by_usage(running: RunningHost, messages: tuple[Message, ...]) -> int:
    request = Request(
        index=0, due_s=0.0, kind="calibration", input_tokens=0, output_tokens=1, force_length=False, messages=messages
    )
    flight = Flight()
    await running.engine.generate(request, flight)
    if flight.end is not End.FINISHED:
        raise EngineError(
            f"the server did not answer a prompt whose tokens it should count: {flight.error or flight.end}"
        )
    if flight.prompt_tokens is None:
        raise EngineError("the server counts no prompt tokens in its usage: prompt lengths would be guesses")
    return flight.prompt_tokens
