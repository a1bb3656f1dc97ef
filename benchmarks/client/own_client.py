"""slo-bench as a client here: the path of a measured probe, in a process of its own.

    python own_client.py --url URL --rate 400 --seconds 15 --tokens 64 --words 32 --answer-s 0.68 --repeat 0 --out FILE

The load goes on after the measured window until the last request of the cohort has ended, as in every probe.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from load import MODEL, CannotRunError, Client, Command, Load, Place, Said
from pydantic import BaseModel, ConfigDict, ValidationError

from slo_bench.doctor.null_engine import null_load
from traffic.endpoint import Endpoint
from traffic.garbage import resting_collector
from traffic.http_engine import HttpEngine
from traffic.probe import run_probe
from traffic.real_time import RealLoop
from traffic.schedule import Schedule
from traffic.sender import Dispatch, Local, OnRecord, Sender
from traffic.workers import LoadWorkers

NAME = "slo-bench"
TWO = "slo-bench-2"
"""The same with two load workers, each on a core of its own where there are so many."""

_OUT = "own.json"


class OwnRequest(BaseModel):
    """One request of the cohort, in seconds; due_s on CLOCK_MONOTONIC."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index: int
    due_s: float
    send_lag_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    has_finished: bool


class OwnAccount(BaseModel):
    """What the process of this client hands over."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = 1
    requests: tuple[OwnRequest, ...]


class _Noted:
    """What sends, and when its load started."""

    def __init__(self, senders: Dispatch) -> None:
        self._senders = senders
        self.origin_s = 0.0

    async def begin(self, schedule: Schedule, on_record: OnRecord) -> Sender:
        """As that which sends."""
        sender = await self._senders.begin(schedule, on_record)
        self.origin_s = sender.origin_s
        return sender


async def account(options: argparse.Namespace) -> OwnAccount:
    """Send the load, and what became of its cohort."""
    schedule = null_load(
        options.rate,
        options.tokens,
        duration_s=options.seconds,
        answer_s=options.answer_s,
        prompt_words=options.words,
        repeat=options.repeat,
    )
    async with Endpoint(options.url) as endpoint:
        engine = HttpEngine(endpoint, MODEL)
        async with AsyncExitStack() as stack:
            senders: Dispatch = Local(engine)
            if options.workers > 1:
                senders = await stack.enter_async_context(LoadWorkers(engine.recipe(), options.workers))
            noted = _Noted(senders)
            with resting_collector():
                facts = await run_probe(engine, schedule, workers=noted)
    return OwnAccount(
        requests=tuple(
            OwnRequest(
                index=each.index,
                due_s=noted.origin_s + each.due_s,
                send_lag_s=each.send_lag_s,
                ttft_s=each.ttft_s,
                tpot_s=each.tpot_s,
                has_finished=each.is_resolved and not each.has_failed,
            )
            for each in facts.records
            if each.in_cohort
        )
    )


def command(python: Path, load: Load, place: Place, workers: int = 1) -> Command:
    """This file as a program."""
    words = {
        "url": place.url,
        "rate": load.rate_rps,
        "seconds": load.seconds,
        "tokens": load.tokens,
        "words": load.words,
        "answer-s": load.answer_s,
        "repeat": load.repeat,
        "workers": workers,
        "out": place.folder / _OUT,
    }
    return Command(
        [str(python), __file__, *(word for name, value in words.items() for word in (f"--{name}", f"{value}"))]
    )


def read(load: Load, folder: Path) -> Said:
    """The account that the process wrote."""
    del load
    try:
        told = OwnAccount.model_validate_json((folder / _OUT).read_bytes()).requests
    except (OSError, ValidationError) as error:
        raise CannotRunError(f"it left no account: {error}") from error
    finished = [each for each in told if each.has_finished]
    return Said(
        asked=len(told),
        finished=len(finished),
        ttft_s=[each.ttft_s for each in finished if each.ttft_s is not None],
        tpot_s=[each.tpot_s for each in finished if each.tpot_s is not None],
        due_s=[each.due_s for each in told],
        own_lag_s=[each.send_lag_s for each in told if each.send_lag_s is not None],
        names=frozenset(str(each.index) for each in told),
    )


def client() -> Client:
    """In the environment of this benchmark."""
    return Client(NAME, Path(sys.executable), command, read)


def two_workers() -> Client:
    """The same load, dealt to two processes."""
    return Client(TWO, Path(sys.executable), partial(command, workers=2), read, cores=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--words", type=int, required=True)
    parser.add_argument("--answer-s", type=float, required=True)
    parser.add_argument("--repeat", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=RealLoop) as runner:
        told = runner.run(account(options))
    options.out.write_text(told.model_dump_json())


if __name__ == "__main__":
    main()
