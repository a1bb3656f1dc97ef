"""What the simulated engine knows by heart, and when it is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gates.gsm8k import messages
from slo_bench.hosts.simulated import SimulatedHost
from slo_bench.simulate.answers import KnownAnswers, known_answers
from traffic.errors import UsageError
from traffic.records import End, Flight, Message, Request
from traffic.step_model import EngineSettings
from traffic.virtual_time import run_virtual

QUESTION, SOLUTION = "What is 2 + 2?", "2 + 2 is 4\n#### 4"


def ask(count: int, limit: int | None = None, *, tokens: int = 64, **changes: object) -> list[Flight]:
    """So many equal requests at once."""
    asked = {"messages": messages(QUESTION), "force_length": False} | changes
    request = Request(0, 0.0, "gsm8k", 20, tokens, **asked)  # type: ignore[arg-type]

    async def run() -> list[Flight]:
        async with SimulatedHost(EngineSettings(), known=KnownAnswers({QUESTION: SOLUTION}, limit)) as running:
            flights = [Flight(answer=[]) for _ in range(count)]
            await asyncio.gather(*(running.engine.generate(request, flight) for flight in flights))
            return flights

    return run_virtual(run())


def said(flight: Flight) -> str:
    return "".join(flight.answer or ())


def test_a_known_question_gets_its_solution_a_word_a_token() -> None:
    (flight,) = ask(1)
    assert (flight.end, flight.finish_reason, flight.output_tokens) == (End.FINISHED, "stop", len(SOLUTION.split(" ")))
    assert said(flight) == SOLUTION


def test_an_answer_that_is_longer_than_asked_for_is_cut() -> None:
    (flight,) = ask(1, tokens=3)
    assert (flight.finish_reason, flight.output_tokens, said(flight)) == ("length", 3, "2 + 2")


def test_above_its_limit_of_requests_in_flight_it_is_wrong() -> None:
    answers = [said(flight) for flight in ask(5, 3)]
    assert answers[:3] == [SOLUTION] * 3
    assert all("#### 4" not in each for each in answers[3:])
    assert len(answers) == 5


@pytest.mark.parametrize(
    "changes", [{"messages": ()}, {"messages": (Message("user", "And the sea?"),)}, {"force_length": True}]
)
def test_what_it_does_not_know_and_what_load_asks_is_as_long_as_asked(changes: dict[str, object]) -> None:
    (flight,) = ask(1, 0, **changes)
    assert (flight.end, flight.output_tokens, flight.finish_reason, said(flight)) == (End.FINISHED, 64, "length", "")


def test_engine_json_says_what_it_knows() -> None:
    async def details() -> object:
        async with SimulatedHost(EngineSettings(), known=KnownAnswers({QUESTION: SOLUTION}, 3)) as running:
            return running.facts.details

    found = run_virtual(details())
    assert isinstance(found, dict)
    assert (found["known_answers"], found["wrong_above_in_flight"]) == (1, 3)


def test_settings_name_a_file_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "Q?", "answer": "#### 1"}\n\n', encoding="utf-8")
    pairs = ["max_num_seqs=4", f"answers={path}", "wrong_above_in_flight=4"]
    assert known_answers(pairs) == KnownAnswers({"Q?": "#### 1"}, 4)
    assert known_answers(pairs[:1]) is None
    path.write_text('{"question": "Q?"}\n', encoding="utf-8")
    for wrong, why in (
        ([f"answers={path}"], "is not JSON lines with question and answer"),
        ([f"answers={tmp_path / 'none'}"], "No such file"),
        (["wrong_above_in_flight=4"], "goes with --simulated answers=FILE"),
        ([f"answers={path}", "wrong_above_in_flight=x"], "give a number of requests"),
    ):
        with pytest.raises(UsageError, match=why):
            known_answers(wrong)
