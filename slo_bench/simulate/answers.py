"""Questions that the simulated engine knows the answers to, right or wrong: what an accuracy gate can be tried on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from traffic.errors import UsageError
from traffic.records import End, Flight, Request
from traffic.simulated import SimulatedEngine

ANSWERS, WRONG_ABOVE = "answers", "wrong_above_in_flight"
ANSWER_SETTINGS = (ANSWERS, WRONG_ABOVE)
"""Names of `--simulated` beside those of the step model."""

_WRONG = "I lost count.\n#### -1"


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Solutions by question. wrong_above_in_flight: with more requests in flight it answers wrong; None for never."""

    solutions: Mapping[str, str]
    wrong_above_in_flight: int | None = None

    def details(self) -> dict[str, object]:
        """What engine.json says of them."""
        return {"known_answers": len(self.solutions), WRONG_ABOVE: self.wrong_above_in_flight}

    def answer(self, request: Request, in_flight: int) -> str | None:
        """What the engine says with so many requests in flight, this one among them; None where it knows nothing.

        A question is the last turn of a chat, or stands at its end below an instruction.
        """
        asked = request.messages[-1].text if request.messages else ""
        solution = self.solutions.get(asked) or self.solutions.get(asked.rpartition("\n\n")[2])
        if solution is None:
            return None
        is_wrong = self.wrong_above_in_flight is not None and in_flight > self.wrong_above_in_flight
        return _WRONG if is_wrong else solution


class AnsweringEngine:
    """A simulated engine that says known answers, a word a token, at the step model's own times."""

    def __init__(self, engine: SimulatedEngine, known: KnownAnswers) -> None:
        self._engine = engine
        self._known = known

    async def generate(self, request: Request, flight: Flight) -> None:
        """See `traffic.engine.Engine`. An answer that is longer than was asked for is cut."""
        model = self._engine.model
        answer = self._known.answer(request, model.running + model.waiting + 1)
        if answer is None or request.force_length:
            await self._engine.generate(request, flight)
            return
        pieces = answer.split(" ")
        said = pieces[: request.output_tokens]
        await self._engine.generate(replace(request, output_tokens=len(said)), flight)
        if flight.end is End.FINISHED:
            flight.finish_reason = "stop" if len(said) == len(pieces) else "length"
            if flight.answer is not None:
                flight.answer.append(" ".join(said))


def known_answers(pairs: Sequence[str]) -> KnownAnswers | None:
    """The answers that NAME=VALUE settings give; None without any.

    Raises UsageError for a file that is not rows of question and answer, and for what is no number.
    """
    given = dict(pair.split("=", 1) for pair in pairs if pair.partition("=")[0] in ANSWER_SETTINGS and "=" in pair)
    if not given:
        return None
    if ANSWERS not in given:
        raise UsageError(f"--simulated {WRONG_ABOVE} goes with --simulated {ANSWERS}=FILE")
    limit = given.get(WRONG_ABOVE)
    if limit is not None and not limit.isdecimal():
        raise UsageError(f"--simulated {WRONG_ABOVE}={limit}: give a number of requests")
    solutions = _read(Path(given[ANSWERS]).expanduser())
    return KnownAnswers(solutions, None if limit is None else int(limit))


def _read(path: Path) -> dict[str, str]:
    """Solutions by question, of JSON lines like GSM8K's."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {str(row["question"]): str(row["answer"]) for row in rows}
    except OSError as error:
        raise UsageError(f"--simulated {ANSWERS}={path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"--simulated {ANSWERS}={path} is not JSON lines with question and answer") from None
