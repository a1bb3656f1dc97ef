"""Why a probe failed: what its late requests waited for, read from their records and the server's own counts.

Evidence is weighted by misses, not by time: an episode of ten seconds fails a p99, and only what the server did while
the late requests were under way says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.optimize import nnls

from gates.evidence import Case, SideBySide, context, counted, missing, ms, number, side_by_side, whole_change
from gates.slo import Metric
from gates.verdict import LimitedBy, ProbeVerdict
from traffic.records import End, RequestRecord
from traffic.server_facts import ServerSample

MAJORITY = 0.5
"""A cause holds for most of the time that late requests waited, or for most of them; the rest may have other causes."""

KV_FULL_SHARE = 0.85
"""The next prompt needs its share of the cache at once, so one that admits nobody stands below 1, in a small cache by
more; requests that queue beside a cache this full most of the time queue for it."""

PINNED_SHARE = 0.02
"""A batch at its limit refills a step after somebody leaves, so a look finds it full or a request or two below. A batch
that only fluctuates is not that close to its own peak most of the time: this tells a limit that nobody named, too."""

FEW_SEQS = 4
"""Up to this limit one request less is a quarter of the batch, so only all of it is full."""

HEAVY_PROMPT_SHARE = 0.5
"""Most of what a step computes is prompt, or most of its token budget is used: then prompts wait for prompts."""

BUDGET_SHARE = 0.8
"""Steps that are full of tokens all the time reach this share of the fullest second; a batch that takes in a prompt
now and then does not."""

DECODE_SHARE = 0.9
"""Of the TPOT limit. Against the simulated engine's truth a step's time without prompts is mostly read 5 to 20 % too
low, and the tenth that is left would have no room for prompts anyway."""

LIGHT_PROMPT_SHARE = 0.1
"""Steps with fewer prompt tokens than this share of all their tokens are decode steps, nearly."""

PREFILL_PART = 0.2
"""Of the time per token: less is within what a fit over a minute and the slow walk of a server's pace leave open."""

CONCENTRATION = 1.2
"""Seconds of chat-mix differ by about 40 % in prompt tokens; ten late requests that met a fifth more met no chance."""

FIT_SECONDS = 10
FIT_SPREAD = 0.1
"""A slope needs some seconds, and prompts that differ among them by more than a server's pace does."""


class CauseKind(StrEnum):
    """What limited a failed probe."""

    ADMISSION = "admission queue"
    KV_FULL = "KV full"
    PREFILL = "prefill contention"
    DECODE = "decode step time"
    CLIENT = "client"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What each engine of the server may do at once (sequences; tokens per step); None where nobody knows."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


UNKNOWN_LIMITS = ServerLimits()


@dataclass(frozen=True, slots=True)
class ClassShare:
    """A class of the mix: its shares of the cohort's requests, of their prompt tokens, and of the misses.

    miss_share is None where nothing missed.
    """

    name: str
    requests: int
    misses: int
    request_share: float
    prompt_share: float
    miss_share: float | None

    def __str__(self) -> str:
        missed = "" if self.miss_share is None else f"{self.miss_share:.0%} of the misses, "
        share = f"{self.request_share:.0%} of the requests, {self.prompt_share:.0%} of the prompt tokens"
        return f"{self.name}: {missed}{share}"


@dataclass(frozen=True, slots=True)
class Cause:
    """What limited a failed probe.

    evidence: sentences with numbers, the deciding one first. classes: by their share of the misses. views: client and
    server side by side. missing: what the server did not say.
    """

    kind: CauseKind
    evidence: tuple[str, ...]
    classes: tuple[ClassShare, ...]
    views: tuple[SideBySide, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        why = self.evidence[:1] or tuple(f"missing: {each}" for each in self.missing[:1])
        return ": ".join((self.kind.value, *why))


def cause(verdict: ProbeVerdict, samples: Sequence[ServerSample], limits: ServerLimits = UNKNOWN_LIMITS) -> Cause:
    """Why a probe failed.

    samples: looks at the server in order; those outside the probe do no harm. limits: of the server's configuration.
    Raises ValueError for a probe that nothing limited.
    """
    case = Case(verdict, samples)
    kind, evidence = CauseKind.UNKNOWN, ""
    for ask in (_client, _failures, _front_end, _kv_full, _admission, _prefill, _steps):
        if answer := ask(case, limits):
            kind, evidence = answer
            break
    return Cause(
        kind=kind,
        evidence=tuple(text for text in (evidence, *context(case)) if text),
        classes=_classes(case.members, case.misses),
        views=side_by_side(verdict.facts, samples),
        missing=missing(case),
    )


_Answer = tuple[CauseKind, str] | None

_BROKEN = (End.FAILED, End.TRUNCATED)
"""Ends that the server or the client made; the others are a request's own lateness."""


def _client(case: Case, _limits: ServerLimits) -> _Answer:
    """The client, where most late requests fail in it or would have been in time without its lateness."""
    ours = [each for each in case.misses if each.error.startswith("client: ")]
    if len(ours) > MAJORITY * len(case.misses):
        return CauseKind.CLIENT, f"{len(ours)} of {len(case.misses)} misses failed in the client: {ours[0].error}"
    limit_s = case.limit_s(Metric.TTFT)
    timed = [(each.ttft_s, each.send_lag_s or 0.0) for each in case.late if each.ttft_s is not None]
    lags = [lag_s for ttft_s, lag_s in timed if ttft_s - lag_s <= limit_s < ttft_s]
    if not case.is_first or len(lags) <= MAJORITY * len(case.late):
        return None
    return CauseKind.CLIENT, (
        f"{len(lags)} of {len(case.late)} late first tokens were in time counted from their send, "
        f"which the client delayed by up to {ms(max(lags))}"
    )


def _failures(case: Case, _limits: ServerLimits) -> _Answer:
    """Failures explain themselves: no gauge says why a server refuses."""
    errors = Counter(each.error or each.end.value for each in case.misses if each.end in _BROKEN)
    if not errors.total() or errors.total() <= MAJORITY * len(case.misses):
        return None
    error, count = errors.most_common(1)[0]
    return CauseKind.UNKNOWN, f"{errors.total()} of {len(case.misses)} misses are failures, {count} of them: {error}"


def _front_end(case: Case, _limits: ServerLimits) -> _Answer:
    """Nothing that the engine did, where its own histogram has few of the late values that the client read."""
    metric = Metric.TTFT if case.is_first else Metric.TPOT
    limit_s, change = case.limit_s(metric), whole_change(case.looks)
    histogram = None if change is None else change.ttft_s if case.is_first else change.tpot_s
    if histogram is None:
        return None
    seen = counted(case.facts, metric, case.looks)
    late = sum((metric.of(each) or 0.0) > limit_s for each in seen)
    most = histogram.over(limit_s)[1]
    if late <= MAJORITY * len(case.late) or most >= MAJORITY * late:
        return None
    return CauseKind.UNKNOWN, (
        f"the client read {late} {metric.value.upper()} above {ms(limit_s)}, the server at most {most}: "
        "the time goes in the front-end or the network"
    )


def _kv_full(case: Case, _limits: ServerLimits) -> _Answer:
    """The KV cache, where it is full and others queue for it, or where enough requests were preempted."""
    server = case.server
    full = case.share((server.kv_use >= KV_FULL_SHARE) & (server.waiting > 0), server.kv_use, server.waiting)
    preempted = case.share(server.preemptions > 0, server.preemptions)
    preemptions = float(np.nansum(server.preemptions))
    if case.is_first and full > MAJORITY:
        use = case.met(server.kv_use)
        return CauseKind.KV_FULL, (
            f"{case.while_late}, {full:.0%} of the time others queued and the KV cache was at least "
            f"{KV_FULL_SHARE:.0%} full ({use:.0%} on average, requests running: {number(case.met(server.running))})"
        )
    if preempted > MAJORITY and preemptions >= MAJORITY * len(case.late):
        return CauseKind.KV_FULL, (
            f"{case.while_late}, {preempted:.0%} of the time requests were preempted: {preemptions:.0f} times, "
            f"with {len(case.late)} requests late and a KV cache use of {number(case.met(server.kv_use), '.0%')}"
        )
    return None


def _admission(case: Case, limits: ServerLimits) -> _Answer:
    """The limit on sequences, where requests queue while the batch stands at it."""
    server = case.server
    if not case.is_first or not np.isfinite(server.running).any():
        return None
    limit = limits.max_num_seqs
    if limit is None and _is_full_of_tokens(case, limits):
        return None
    most = float(np.nanmax(server.running)) if limit is None else limit
    slack = max(1.0, PINNED_SHARE * most) if most > FEW_SEQS else 0.0
    is_pinned = (server.waiting > 0) & (server.running >= most - slack)
    pinned = case.share(is_pinned, server.waiting, server.running)
    if pinned <= MAJORITY:
        return None
    named = "the limit on sequences" if limit is not None else "never more"
    return CauseKind.ADMISSION, (
        f"{case.while_late}, {pinned:.0%} of the time others queued ({case.met(server.waiting):.0f} on average) "
        f"and {case.met(server.running):.0f} of {most:.0f} ran ({named})"
    )


def _is_full_of_tokens(case: Case, limits: ServerLimits) -> bool:
    """Whether prompts ran in most steps and those used up the same number of tokens.

    Then the number of requests is as steady as under a limit of its own, but it is prefill that lets nobody in.
    """
    change, step_tokens = whole_change(case.looks), case.server.step_tokens
    if change is None or change.step_tokens is None or not np.isfinite(step_tokens).any():
        return False
    budget = limits.max_num_batched_tokens or float(np.nanmax(step_tokens))
    with_prompts, _ = change.step_tokens.over(float(np.nanmax(case.server.running)))
    return with_prompts > MAJORITY * change.step_tokens.count and case.met(step_tokens) >= BUDGET_SHARE * budget


def _prefill(case: Case, limits: ServerLimits) -> _Answer:
    """Prompts that wait for prompts: late first tokens with room for sequences and KV, in steps full of prompt."""
    prompt, step = case.met(case.server.prompt_tokens), case.met(case.server.step_tokens)
    budget = limits.max_num_batched_tokens
    is_heavy = prompt > HEAVY_PROMPT_SHARE * step or (budget is not None and step > HEAVY_PROMPT_SHARE * budget)
    if not case.is_first or not is_heavy:
        return None
    queued = case.met(case.server.waiting)
    queue = "" if math.isnan(queued) else f"; {queued:.1f} queued on average, with room for more sequences and KV"
    limit = "" if budget is None else f" (at most {budget})"
    return CauseKind.PREFILL, (
        f"{case.while_late}, a step took in {prompt:.0f} prompt tokens beside {step - prompt:.0f} output tokens"
        f"{limit}{queue}"
    )


def _steps(case: Case, _limits: ServerLimits) -> _Answer:
    """Slow tokens: the decode step itself, or the prompts that run with it."""
    server = case.server
    if case.is_first:
        return None
    limit_s = case.limit_s(Metric.ITL if case.limited_by is LimitedBy.ITL else Metric.TPOT)
    met_s, prompt, step = case.met(server.s_per_token), case.met(server.prompt_tokens), case.met(server.step_tokens)
    decode_s, batch = _decode_s(case), step - prompt
    limit = f" (limit {ms(limit_s)})" if math.isfinite(limit_s) else ""
    token = f"{case.while_late}, a token took {ms(met_s)}{limit}"
    if decode_s >= max(MAJORITY * met_s, DECODE_SHARE * limit_s if limit else 0.0):
        return CauseKind.DECODE, f"{token}, of which the decode step of {batch:.0f} requests alone {ms(decode_s)}"
    usual = float(np.nanmean(server.prompt_tokens)) if math.isfinite(prompt) else math.nan
    prompts = f"{prompt:.0f} prompt tokens per step, {prompt / usual if usual else 1.0:.1f} times the probe's mean"
    if met_s - decode_s > PREFILL_PART * met_s:
        return CauseKind.PREFILL, (
            f"{token}: {ms(decode_s)} for the decode step of {batch:.0f} requests, the rest for {prompts}"
        )
    if prompt > CONCENTRATION * usual or (math.isnan(decode_s) and prompt > HEAVY_PROMPT_SHARE * step):
        return CauseKind.PREFILL, f"{token}, in steps of {batch:.0f} requests with {prompts}"
    return None


def _decode_s(case: Case) -> float:
    """What a token would have taken late requests without prompts in the steps, in seconds; NaN where unknown.

    The slope over prompt tokens, beside one over the batch, is fitted to the looks; the prompts' part is taken off.
    """
    server = case.server
    time_s, prompt, batch = server.s_per_token, server.prompt_tokens, server.step_tokens - server.prompt_tokens
    met_s, met_prompt = case.met(time_s), case.met(prompt)
    if met_prompt <= LIGHT_PROMPT_SHARE * case.met(server.step_tokens):
        return met_s
    known = np.isfinite(time_s) & np.isfinite(prompt)
    if known.sum() < FIT_SECONDS or prompt[known].std() < FIT_SPREAD * prompt[known].mean():
        return math.nan
    terms = np.stack([np.ones(known.sum()), batch[known], prompt[known]], axis=1)
    slopes, _ = nnls(terms, time_s[known])  # more work takes no less time
    return max(0.0, met_s - float(slopes[2]) * met_prompt)


def _classes(members: Sequence[RequestRecord], misses: Sequence[RequestRecord]) -> tuple[ClassShare, ...]:
    """The classes of the mix, those with most misses first."""
    requests, missed = Counter(each.kind for each in members), Counter(each.kind for each in misses)
    prompts: Counter[str] = Counter()
    for each in members:
        prompts[each.kind] += each.input_tokens
    return tuple(
        ClassShare(
            name=name,
            requests=count,
            misses=missed[name],
            request_share=count / len(members),
            prompt_share=prompts[name] / max(1, prompts.total()),
            miss_share=missed[name] / len(misses) if misses else None,
        )
        for name, count in sorted(requests.items(), key=lambda item: (-missed[item[0]], item[0]))
    )
