"""Where the load of a bench is sent from."""

from __future__ import annotations

import pytest
from engines import Scripted, ScriptedHost, answer, silent

from gates.slo import parse_objective
from gates.validity import MEASURED
from gates.verdict import Outcome
from slo_bench.bench import Bench, Load
from slo_bench.load_workers import load_workers
from traffic.errors import UsageError
from traffic.schedule import Schedule
from traffic.sender import Local, LocalSender, OnRecord
from traffic.virtual_time import run_virtual
from traffic.workload import fixed_lengths

P90 = tuple(parse_objective(text) for text in ("ttft:p90:2000", "tpot:p90:50"))
LOAD = Load(fixed_lengths(30, 3), 1.0, 0, P90, ramp_s=2.0, bounds=MEASURED)


class Elsewhere:
    """Sends through another engine than the host's, as other processes do."""

    def __init__(self) -> None:
        self.engine = Scripted(answer())
        self.loads: list[Schedule] = []

    async def begin(self, schedule: Schedule, on_record: OnRecord) -> LocalSender:
        self.loads.append(schedule)
        return await Local(self.engine).begin(schedule, on_record)


def test_windows_and_warm_up_are_sent_by_the_workers() -> None:
    host, workers = ScriptedHost(Scripted(silent())), Elsewhere()

    async def main() -> Outcome | None:
        bench = await Bench.prepare(host, LOAD, None, workers)
        await bench.warm_up(5.0, 4.0, 2)
        return (await bench.window(5.0, 0, 10.0)).outcome

    assert run_virtual(main()) is Outcome.PASS
    assert len(workers.loads) == 3
    assert host.engine.received == []


def test_one_process_needs_no_workers() -> None:
    async def main() -> object:
        async with load_workers(ScriptedHost(Scripted(answer())), 1) as workers:
            return workers

    assert run_virtual(main()) is None


def test_an_engine_of_this_process_cannot_be_shared() -> None:
    async def main() -> None:
        async with load_workers(ScriptedHost(Scripted(answer())), 2):
            pass

    with pytest.raises(UsageError, match="--load-workers goes with a server"):
        run_virtual(main())
