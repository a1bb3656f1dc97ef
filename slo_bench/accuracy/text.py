"""Reads fixed texts to a running engine, one at a time in one order, and keeps how likely it found each token."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping

from gates.text import LOWEST_LOGPROB, TextResult
from reports.text_document import TextDocument, text_document
from slo_bench.accuracy.texts import TEXTS
from slo_bench.bench import IDLE_LIMIT_S
from slo_bench.engine_options import EngineOptions
from slo_bench.hosts import RunningHost
from traffic.errors import EngineError, UsageError
from traffic.http_engine import HttpEngine

CONTINUATION_TOKENS = 32

BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"

_NONE = "the server gives no prompt_logprobs"


def texts_sha256() -> str:
    """The checksum of the texts and of what is asked."""
    return hashlib.sha256(json.dumps([*TEXTS, CONTINUATION_TOKENS]).encode()).hexdigest()


def batch_invariant(options: EngineOptions) -> str | None:
    """Why a server of these options is not asked; None where it is.

    In its batch-invariant mode vLLM reads no tuned file, and rounds alike whatever was tuned: it would prove nothing.
    """
    given = dict(pair.split("=", 1) for pair in options.server_env)
    value = given.get(BATCH_INVARIANT, os.environ.get(BATCH_INVARIANT) if options.engine_kind() == "vllm" else None)
    return None if value in (None, "", "0") else f"{BATCH_INVARIANT}={value}: in that mode tuned files are not read"


async def read_texts(running: RunningHost, *, label: str, why_not: str | None = None) -> TextDocument:
    """What the engine says of the texts; why_not: a reason not to ask it.

    Raises EngineError when the engine is dead or does not come to rest.
    """
    results: list[TextResult] = []
    if why_not is None and not isinstance(running.engine, HttpEngine):
        why_not = "the engine gives no prompt_logprobs"
    if why_not is None and isinstance(running.engine, HttpEngine):
        await running.wait_idle(IDLE_LIMIT_S)
        try:
            for text in TEXTS:
                answer = await running.engine.prompt_logprobs(text, more_tokens=CONTINUATION_TOKENS)
                results.append(text_result(answer))
        except (EngineError, UsageError, ValueError) as error:
            running.check()
            why_not, results = str(error), []
    return text_document(
        label=label,
        engine=running.facts.kind,
        texts_sha256=texts_sha256(),
        results=tuple(results),
        not_measured=why_not,
    )


def text_result(answer: object) -> TextResult:
    """The result of one completion in vLLM's form. Raises ValueError for one without prompt_logprobs.

    A place holds the likeliest token and, where that is another one, the text's own: by their ranks.
    """
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    places = choice.get("prompt_logprobs") if isinstance(choice, Mapping) else None
    if not isinstance(places, list) or not isinstance(choice, Mapping):
        raise ValueError(_NONE)  # noqa: TRY004 - an answer is data
    read = [_place(place) for place in places[1:]]
    if not read:
        raise ValueError(_NONE)
    return TextResult(
        logprobs=tuple(logprob for logprob, _ in read),
        top=tuple(top for _, top in read),
        continuation=_continuation(choice),
    )


def _place(place: object) -> tuple[float, str]:
    """How likely the text's token was found, and the id of the likeliest one."""
    found = []
    for token, entry in place.items() if isinstance(place, Mapping) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("rank"), int):
            found.append((int(entry["rank"]), str(token), entry.get("logprob")))
    logprob = max(found)[2] if found else None
    if not isinstance(logprob, int | float) or logprob != logprob:  # noqa: PLR0124 - NaN is no probability
        raise ValueError(_NONE)
    return max(float(logprob), LOWEST_LOGPROB), min(found)[1]


def _continuation(choice: Mapping[str, object]) -> tuple[str, ...]:
    """The tokens that followed, as text; the words where the server does not tell tokens apart."""
    logprobs, text = choice.get("logprobs"), choice.get("text")
    tokens = logprobs.get("tokens") if isinstance(logprobs, Mapping) else None
    if isinstance(tokens, list):
        return tuple(str(token) for token in tokens)
    return tuple(text.split()) if isinstance(text, str) else ()
