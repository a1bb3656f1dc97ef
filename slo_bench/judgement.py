"""The verdict on a window, with what its server said of itself while it ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gates.evidence import server_cached_share, side_by_side
from gates.slo import Objective
from gates.validity import Bounds, cache_flatters
from gates.verdict import ProbeVerdict, judge_probe
from traffic.probe import ProbeFacts
from traffic.prompts import TokenRatio
from traffic.schedule import CACHE_BLOCK_TOKENS
from traffic.server_facts import ServerSample
from traffic.summary import cohort, mean


def judge_window(
    facts: ProbeFacts,
    slo: Sequence[Objective],
    bounds: Bounds,
    *,
    samples: Sequence[ServerSample] = (),
    text: TokenRatio | None = None,
) -> ProbeVerdict:
    """The verdict, the server's own view of its latencies and of its prefix cache included.

    samples: looks at its counts. text: how prompts were made; its template is among what they share.
    """
    facts = _with_template(facts, text)
    verdict = judge_probe(facts, slo, bounds)
    reasons = [each.invalid_reason for each in side_by_side(facts, samples)]
    server_share = server_cached_share(facts, samples)
    if cache_flatters(facts, verdict.cached_share, bounds) is None:
        reasons.append(cache_flatters(facts, server_share, bounds))
    told = tuple(reason for reason in reasons if reason is not None)
    return replace(
        verdict,
        outcome=None if told else verdict.outcome,
        invalid_reasons=(*verdict.invalid_reasons, *told),
        cached_share=server_share if verdict.cached_share is None else verdict.cached_share,
    )


def _with_template(facts: ProbeFacts, text: TokenRatio | None) -> ProbeFacts:
    """The facts, with a chat template's whole cache blocks in shared_share: every prompt begins with the same ones."""
    overhead_tokens = 0.0 if text is None else text.overhead_tokens
    template_tokens = overhead_tokens // CACHE_BLOCK_TOKENS * CACHE_BLOCK_TOKENS
    prompt_tokens = mean([each.input_tokens for each in cohort(facts.records)])
    if not template_tokens or not prompt_tokens:
        return facts
    shared_share = min(1.0, facts.window.shared_share + template_tokens / prompt_tokens)
    return replace(facts, window=replace(facts.window, shared_share=shared_share))
