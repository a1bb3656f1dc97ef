"""How long a prompt must be in words to be as long as asked in the server's own tokens."""

from __future__ import annotations

from slo_bench.hosts import RunningHost
from traffic.errors import EngineError
from traffic.prompts import TokenRatio, prompt
from traffic.randomness import stream
from traffic.records import End, Flight, Message, Request

SHORT_WORDS, LONG_WORDS = 8, 240
CALIBRATION_LIMIT_S = 60.0


async def token_ratio(running: RunningHost, seed: int) -> TokenRatio | None:
    """Words per token on this server, from two prompts; None for an engine that needs lengths only.

    The server's /tokenize is asked where it exists, else its usage count of a one-token answer. Raises EngineError when
    it gives neither: prompt lengths would be guesses.
    """
    if not running.needs_text:
        return None
    short = await _count(running, seed, SHORT_WORDS)
    long = await _count(running, seed, LONG_WORDS)
    if short is None or long is None or long <= short:
        raise EngineError(
            f"the server counts {short} and {long} tokens for prompts of {SHORT_WORDS} and {LONG_WORDS} words: "
            "without a count of its own, prompt lengths would be guesses"
        )
    per_word = (long - short) / (LONG_WORDS - SHORT_WORDS)
    return TokenRatio(tokens_per_word=per_word, overhead_tokens=max(0.0, short - per_word * SHORT_WORDS))


async def _count(running: RunningHost, seed: int, words: int) -> int | None:
    messages = prompt(stream("calibration", seed, running.facts.start, words), "calibration", words)
    counted = await running.count_tokens(messages)
    return await _count_by_usage(running, messages) if counted is None else counted


async def _count_by_usage(running: RunningHost, messages: tuple[Message, ...]) -> int | None:
    request = Request(
        index=0, due_s=0.0, kind="calibration", input_tokens=0, output_tokens=1, force_length=False, messages=messages
    )
    flight = Flight()
    await running.engine.generate(request, flight)
    if flight.end is not End.FINISHED:
        raise EngineError(f"the server did not answer a prompt of one line: {flight.error or flight.end}")
    return flight.prompt_tokens
