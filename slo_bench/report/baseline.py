"""A session against an earlier one, for CI: whether they are comparable, and whether anything became slower.

What is compared and by which statistics: docs/method.md, "Across sessions".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gates.capacity import rate_text
from gates.regression import (
    Bracket,
    Change,
    EqualStarts,
    Judgement,
    Measure,
    Verdict,
    capacity_change,
    judge,
    latency_change,
)
from reports import numbers
from reports.effect_document import DifferenceRow
from reports.summary_document import ArmSummary, SummaryDocument, WindowSummary

EXIT_CODES = {Verdict.NONE: 0, Verdict.REGRESSION: 1, Verdict.INCONCLUSIVE: 5, Verdict.NOT_COMPARABLE: 5}


@dataclass(frozen=True, slots=True)
class Answer:
    """The judgement on a bound. reasons: why sessions cannot be compared. rate_rps: where latencies are compared.

    differences: what the baseline arms tell of themselves and is not the same. notes: what a reader should know.
    """

    judgement: Judgement
    bound_share: float
    rate_rps: float | None = None
    reasons: tuple[str, ...] = ()
    differences: tuple[DifferenceRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 without a regression beyond the bound, 1 with one, 5 where nothing can be said."""
        return EXIT_CODES[self.judgement.verdict]


def against(before: SummaryDocument, now: SummaryDocument, *, bound_share: float) -> Answer:
    """The later session against the earlier one."""
    differences = tuple(_differences(before, now))
    reasons = tuple(_not_comparable(before, now))
    if reasons:
        return Answer(Judgement(Verdict.NOT_COMPARABLE, ()), bound_share, None, reasons, differences)
    pairs = _equal_arms(before), _equal_arms(now)
    rate_rps = _common_rate(before, now, (*pairs[0], *pairs[1]))
    changes = [
        *(_latency(measure, pairs, rate_rps, bound_share) for measure in (Measure.TPOT_MEAN, Measure.TTFT_MEAN)),
        capacity_change(_brackets(pairs[0]), _brackets(pairs[1]), bound_share=bound_share),
    ]
    return Answer(judge(changes), bound_share, rate_rps, (), differences, tuple(_notes(before, now)))


def lines(answer: Answer) -> Iterator[str]:
    """The answer for a terminal or a CI log: verdict first."""
    bound = numbers.share(answer.bound_share)
    verdict = answer.judgement.verdict
    if verdict is Verdict.NOT_COMPARABLE:
        yield f"not comparable: {'; '.join(answer.reasons)}"
    else:
        words = {
            Verdict.REGRESSION: f"regression of more than {bound} proven",
            Verdict.NONE: f"no regression beyond {bound}",
            Verdict.INCONCLUSIVE: f"inconclusive: the drift of both sessions leaves a regression of {bound} open",
        }
        yield words[verdict]
    for change in answer.judgement.changes:
        at = f" at {numbers.rate(answer.rate_rps)}" if change.measure is not Measure.CAPACITY else ""
        yield f"  {change.measure}{at if answer.rate_rps is not None else ''}: {_change_text(change)}"
    for note in answer.notes:
        yield f"  note: {note}"
    for row in answer.differences:
        yield f"  {row.what}: was {row.a or 'not said'}, is {row.b or 'not said'}"


def _change_text(change: Change) -> str:
    if change.share is None:
        return numbers.NOT_MEASURED
    if change.interval is None:
        return f"{numbers.signed_share(change.share)}, no interval"
    word = {Verdict.NONE: "within the bound", Verdict.REGRESSION: "regression"}.get(change.verdict, "inconclusive")
    return f"{numbers.signed_share(change.share)} ({numbers.signed_interval(change.interval)}): {word}"


def _not_comparable(before: SummaryDocument, now: SummaryDocument) -> Iterator[str]:
    """Everything that forbids a comparison: faults of one session, then what is not the same in both."""
    for name, session in (("the baseline", before), ("this session", now)):
        yield from _unfit(name, session)
    if before.engine != now.engine:
        yield f"engine was {before.engine}, is {now.engine}"
    models = [_model(session) for session in (before, now)]
    if models[0] != models[1]:
        yield f"model was {models[0]}, is {models[1]}"
    if before.gpus != now.gpus:
        yield f"GPU was {_shown(before.gpus)}, is {_shown(now.gpus)}"
    if before.seed != now.seed:
        yield f"seed was {before.seed}, is {now.seed}"
    for name in sorted(before.load.keys() | now.load.keys()):
        old, new = before.load.get(name), now.load.get(name)
        if old != new:
            yield f"{name} was {_shown(old)}, is {_shown(new)}"


def _unfit(name: str, session: SummaryDocument) -> Iterator[str]:
    """Why a session cannot be compared with any other."""
    if session.kind == "compare":
        yield f"{name} is one comparison of two arms: sessions are compared by experiments with a drift arm"
    elif session.is_smoke:
        yield f"{name} is a smoke run, which is no measurement"
    elif session.drift_arm is None:
        yield f"{name} has no drift arm, so what its starts differ by is not known"
    else:
        for arm in _equal_arms(session):
            if arm.status != "done":
                yield f"the arm {arm.label} of {name} is {arm.status}"


def _model(session: SummaryDocument) -> str | None:
    arm = session.arm(session.baseline)
    return None if arm is None else arm.model


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _equal_arms(session: SummaryDocument) -> tuple[ArmSummary, ...]:
    """The baseline and the arm that repeats it."""
    found = (session.arm(session.baseline), session.arm(session.drift_arm))
    return tuple(arm for arm in found if arm is not None)


def _common_rate(before: SummaryDocument, now: SummaryDocument, arms: Sequence[ArmSummary]) -> float | None:
    """The highest rate that no anchor rate lies below and at which all arms have a whole window of one repeat."""
    anchors = (before.anchor_rps, now.anchor_rps)
    known = [{(window.rate_rps, window.repeat, window.window_s) for window in arm.windows} for arm in arms]
    common = set.intersection(*known) if known else set()
    return max(
        (rate for rate, _, _ in common if all(anchor is not None and rate <= anchor for anchor in anchors)),
        default=None,
    )


def _latency(
    measure: Measure, sessions: Sequence[Sequence[ArmSummary]], rate_rps: float | None, bound_share: float
) -> Change:
    def values(arm: ArmSummary) -> dict[int, float | None]:
        return {each.repeat: _value(each, measure) for each in arm.windows if each.rate_rps == rate_rps}

    before, now = (EqualStarts(values(session[0]), values(session[1])) for session in sessions)
    return latency_change(measure, before, now, bound_share=bound_share)


def _value(window: WindowSummary, measure: Measure) -> float | None:
    return window.tpot_mean_s if measure is Measure.TPOT_MEAN else window.ttft_mean_s


def _brackets(arms: Sequence[ArmSummary]) -> list[Bracket]:
    return [Bracket(arm.capacity_rps, arm.first_failed_rps) for arm in arms]


def _differences(before: SummaryDocument, now: SummaryDocument) -> Iterator[DifferenceRow]:
    """Between the baseline arms of both sessions."""
    old, new = before.arm(before.baseline), now.arm(now.baseline)
    left, right = ({} if arm is None else arm.facts for arm in (old, new))
    for what in sorted(left.keys() | right.keys()):
        if left.get(what) != right.get(what):
            yield DifferenceRow(what=what, a=left.get(what), b=right.get(what))


def _notes(before: SummaryDocument, now: SummaryDocument) -> Iterator[str]:
    if before.gpu_uuids != now.gpu_uuids:
        yield "other cards of the same model: what two cards differ by is not in the intervals"
    if before.gpus is None and before.engine == "attached":
        yield "no GPU was seen from here: that both sessions ran on the same model of card is not checked"
    if before.anchor_rps is not None and now.anchor_rps is not None and before.anchor_rps != now.anchor_rps:
        yield f"the anchor rate was {rate_text(before.anchor_rps)}, is {rate_text(now.anchor_rps)} req/s"
    for name, session in (("the baseline", before), ("this session", now)):
        cold = [arm.label for arm in _equal_arms(session) if not arm.is_warm]
        if cold:
            yield f"{', '.join(cold)} of {name} not warm: its first windows may be too slow"
