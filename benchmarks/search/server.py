"""Windows on the simulated engine without an event loop: its step model, the product's schedule, referee and records.

One `Server` is one server start: its noise and its drift go on from window to window, as a real one's do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from settings import Setting

from gates.slo import drain_limit_s
from traffic.probe import ProbeFacts, Referee, Stop
from traffic.records import End, Request, RequestRecord
from traffic.schedule import Draw, Schedule, open_loop
from traffic.step_model import Job, StepModel
from traffic.workload import CHAT_MIX

RAMP_S = 20.0
SETTLING_S = 2.0
"""Between two windows: the sweep waits until the server is idle."""

LOOK_S = 1.0
"""How often a referee is asked, as in `traffic.probe`."""

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Server:
    """One start of the simulated engine, measured window after window."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.seed = seed
        self.model = StepModel(setting.engine, seed)
        self.now_s = 0.0
        self.load_s = 0.0

    def window(
        self, rate_rps: float, repeat: int, duration_s: float, referee: Callable[[Schedule], Referee | None]
    ) -> ProbeFacts:
        """Measure one window and leave the server idle."""
        schedule = open_loop(
            Draw(CHAT_MIX, self.seed, repeat, arrivals=self.setting.arrivals),
            rate_rps=rate_rps,
            ramp_s=RAMP_S,
            duration_s=duration_s,
            drain_limit_s=lambda longest: drain_limit_s(self.setting.slo, longest),
            text=None,
        )
        facts = _Probe(self.model, schedule, referee(schedule), self.now_s).run()
        self.now_s += facts.load_s + SETTLING_S
        self.load_s += facts.load_s
        return facts


class _Probe:
    """A window under way."""

    def __init__(self, model: StepModel, schedule: Schedule, referee: Referee | None, origin_s: float) -> None:
        self.model = model
        self.schedule = schedule
        self.window = schedule.window
        self.referee = referee
        self.origin_s = origin_s
        self.jobs: dict[Job, Request] = {}  # in flight
        self.records: list[RequestRecord] = []
        self.unresolved = self.window.scheduled
        self.coming = deque(schedule.requests)
        self.sent = 0

    def run(self) -> ProbeFacts:
        """Step until a reason to stop."""
        now_s, look_s = 0.0, LOOK_S
        stop: Stop | None = None
        while stop is None:
            while self.coming and self.coming[0].due_s <= now_s:
                self._submit(self.coming.popleft())
            end_s = self.model.begin_step(self.origin_s + now_s)
            if end_s is None:
                now_s = min(look_s, self.coming[0].due_s) if self.coming else look_s
            else:
                now_s = end_s - self.origin_s
            while stop is None and look_s <= now_s:
                self._submit_until(look_s)
                stop = self._look(look_s)
                look_s += LOOK_S
            if end_s is not None:
                finished = self.model.end_step().finished
                if stop is None:
                    for job in finished:
                        self._finish(job)
        return self._settle(stop, look_s - LOOK_S)

    def _submit(self, request: Request) -> None:
        job = self.model.submit(self.origin_s + request.due_s, request.input_tokens, request.output_tokens)
        self.jobs[job] = request
        self.sent += 1

    def _submit_until(self, now_s: float) -> None:
        """Requests that came during the step under way are in flight for the referee."""
        while self.coming and self.coming[0].due_s <= now_s:
            self._submit(self.coming.popleft())

    def _look(self, now_s: float) -> Stop | None:
        if now_s >= self.window.window_end_s and not self.unresolved:
            return Stop.COMPLETE
        if now_s >= self.window.drain_end_s:
            return Stop.DRAIN_LIMIT
        return None if self.referee is None else self.referee.look(now_s, len(self.jobs), self.sent)

    def _finish(self, job: Job) -> None:
        record = self._record(self.jobs.pop(job), job, End.FINISHED)
        self.records.append(record)
        if record.in_cohort:
            self.unresolved -= 1
            if self.referee is not None:
                self.referee.resolved(record)

    def _settle(self, stop: Stop, load_s: float) -> ProbeFacts:
        for job, request in self.jobs.items():
            end = End.UNFINISHED if stop is Stop.DRAIN_LIMIT and request.in_cohort else End.UNRESOLVED
            self.model.abort(job)
            self.records.append(self._record(request, job, end))
        return ProbeFacts(
            window=self.window,
            records=tuple(sorted(self.records, key=lambda record: record.index)),
            stop=stop,
            started_utc=EPOCH,
            load_s=load_s,
            saved_s=max(0.0, self.window.window_end_s - load_s) if stop.is_early else 0.0,
            stall_max_s=0.0,
            clock_step_s=0.0,
        )

    def _record(self, request: Request, job: Job, end: End) -> RequestRecord:
        tokens, first_s, last_s, gap_s = self.model.progress(job)

        def since(moment_s: float | None) -> float | None:
            return None if moment_s is None else moment_s - self.origin_s

        return RequestRecord(
            index=request.index,
            kind=request.kind,
            in_cohort=request.in_cohort,
            due_s=request.due_s,
            sent_s=request.due_s,
            first_token_s=since(first_s),
            last_token_s=since(last_s),
            ended_s=since(last_s) if end is End.FINISHED else None,
            end=end,
            error="",
            input_tokens=request.input_tokens,
            prompt_tokens=request.input_tokens,
            cached_tokens=0,
            requested_output_tokens=request.output_tokens,
            force_length=True,
            output_tokens=tokens,
            output_tokens_estimated=False,
            chunk_gap_max_s=gap_s,
            malformed_frames=0,
        )
