"""The verdict on one probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gates.prompt_lengths import prompt_lengths
from gates.slo import Metric, Objective, ObjectiveResult, is_miss, judge
from gates.validity import MEASURED, Bounds, cached_share, invalid_reasons
from traffic.probe import ProbeFacts, Stop
from traffic.summary import Summary, cohort, summarise


class Outcome(StrEnum):
    """What one window says about its rate."""

    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    UNSTABLE = "fail (unstable)"

    @property
    def passed(self) -> bool:
        """Whether every objective held."""
        return self is Outcome.PASS


class LimitedBy(StrEnum):
    """Which objective a failed probe broke most; failures when they alone break it."""

    TTFT = "ttft"
    TPOT = "tpot"
    ITL = "itl"
    E2E = "e2e"
    FAILURES = "failures"


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """Facts, and what they mean. outcome is None for an invalid probe: it is never a result.

    flags: what a reader should know of the window, though it decides nothing. cached_share: prompt tokens that a prefix
    cache held; None where neither usage nor the server's counts told.
    """

    facts: ProbeFacts
    summary: Summary
    results: tuple[ObjectiveResult, ...]
    outcome: Outcome | None
    invalid_reasons: tuple[str, ...]
    limited_by: LimitedBy | None
    misses: int
    goodput_rps: float | None
    flags: tuple[str, ...] = ()
    cached_share: float | None = None

    @property
    def is_valid(self) -> bool:
        """Whether the probe may be used."""
        return not self.invalid_reasons

    def result(self, metric: Metric) -> ObjectiveResult | None:
        """The first objective on a metric, None where the SLO has none."""
        return next((each for each in self.results if each.objective.metric is metric), None)


def judge_probe(facts: ProbeFacts, slo: Sequence[Objective], bounds: Bounds = MEASURED) -> ProbeVerdict:
    """Judge one probe; every number follows from its records."""
    summary = summarise(facts)
    members = [record for record in cohort(facts.records) if record.is_resolved]
    results = tuple(judge(objective, members) for objective in slo)
    reasons = invalid_reasons(facts, summary, slo, bounds)
    misses = sum(is_miss(slo, record) for record in members)
    if facts.stop is Stop.GROWTH:
        outcome = Outcome.UNSTABLE
    elif facts.stop is Stop.ERRORS or not all(result.holds for result in results):
        outcome = Outcome.FAIL
    else:
        outcome = Outcome.PASS
    return ProbeVerdict(
        facts=facts,
        summary=summary,
        results=results,
        outcome=None if reasons else outcome,
        invalid_reasons=reasons,
        limited_by=None if outcome is Outcome.PASS else _limit(results, summary),
        misses=misses,
        goodput_rps=(len(members) - misses) / summary.measured_s if summary.measured_s > 0 else None,
        flags=_flags(facts),
        cached_share=cached_share(facts),
    )


def _flags(facts: ProbeFacts) -> tuple[str, ...]:
    lengths = prompt_lengths(facts)
    return () if lengths is None or lengths.flag is None else (lengths.flag,)


def _limit(results: Sequence[ObjectiveResult], summary: Summary) -> LimitedBy:
    """What broke the probe: failures where they alone exceed an allowance, else the objective furthest over its own.

    A request that was unfinished at the drain limit has not failed; the server was too slow for it.
    """
    failed = summary.failed - summary.unfinished
    if any(failed > result.allowed for result in results):
        return LimitedBy.FAILURES
    worst = max(results, key=lambda result: (result.over + 1) / (result.allowed + 1))
    return LimitedBy(worst.objective.metric.value)
