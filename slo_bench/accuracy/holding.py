"""Holds the accuracy gate on a running engine: what will be asked, asking it, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gates.accuracy import RANDOM_WEIGHTS, AccuracyRun, judge_accuracy, not_applicable
from gates.gsm8k import TOKEN_BUDGET, messages, token_budget
from reports.gates_document import GATES_NAME, GatesDocument, gates_document
from reports.run_directory import EngineKind, read_document
from slo_bench.accuracy.gate import run_gsm8k
from slo_bench.accuracy.items import ItemSet, load_items
from slo_bench.accuracy.options import AccuracyOptions, has_random_weights
from slo_bench.accuracy.text import batch_invariant
from slo_bench.bench import IDLE_LIMIT_S
from slo_bench.engine_options import EngineOptions
from slo_bench.hosts import RunningHost
from slo_bench.hosts.simulated import MODEL_ID
from slo_bench.simulate.answers import known_answers
from traffic.errors import UsageError

SLOWEST_TOKEN_S = 0.2
"""A server whose answers take longer than their budget at this pace is not waited for."""

SAID_EVERY = 100

_LEAST_DEADLINE_S = 300.0
_LONGEST = 3
_SPARE_TOKENS = 16
_CHARS_PER_TOKEN = 3
"""Where nobody counts a prompt; English has four or more."""

NO_ANSWERS = "the simulated engine answers no questions; --simulated answers=FILE gives it some"


@dataclass(frozen=True, slots=True)
class GatePlan:
    """What the gate asks. item_set: None where it cannot apply, and why_not says why. budget_tokens: as wanted.

    why_no_text: why an experiment's text gate is not asked either, None where it is.
    """

    item_set: ItemSet | None
    why_not: str = RANDOM_WEIGHTS
    floor: float | None = None
    budget_tokens: int = TOKEN_BUDGET
    why_no_text: str | None = None

    def __str__(self) -> str:
        if self.item_set is None:
            return f"not applicable: {self.why_not}"
        return f"{len(self.item_set.items)} items of {self.item_set.source}"


def answers_nothing(engine: EngineOptions) -> bool:
    """Whether the options name the simulated engine, and give it no answers."""
    return engine.engine_kind() == "simulated" and known_answers(engine.simulated) is None


def gate_plan(
    options: AccuracyOptions, engine: EngineOptions, *, count: int | None, item_set: ItemSet | None = None
) -> GatePlan:
    """The plan that the options describe, its items read, which blocks for seconds; count: how many, None for all.

    item_set: the items, where they have been read. Raises UsageError when they cannot be had.
    """
    if answers_nothing(engine):
        return GatePlan(None, NO_ANSWERS)
    why_no_text = batch_invariant(engine)
    if has_random_weights(engine):
        return GatePlan(None, why_no_text=why_no_text)
    return GatePlan(
        item_set or load_items(options.gsm8k_file, count=count),
        floor=options.accuracy_floor,
        budget_tokens=options.token_budget,
        why_no_text=why_no_text,
    )


async def budget(running: RunningHost, plan: GatePlan) -> int:
    """How many tokens an answer may take on this engine. Raises UsageError where its context is too short for that."""
    if plan.item_set is None or running.facts.max_model_len is None:
        return plan.budget_tokens
    longest = sorted((item.question for item in plan.item_set.items), key=len)[-_LONGEST:]
    counts = [await _prompt_tokens(running, question) for question in longest]
    return token_budget(running.facts.max_model_len, max(counts) + _SPARE_TOKENS, plan.budget_tokens)


async def _prompt_tokens(running: RunningHost, question: str) -> int:
    prompt = messages(question)
    count = await running.count_tokens(prompt)
    return count if count is not None else sum(len(each.text) for each in prompt) // _CHARS_PER_TOKEN


def telling(say: Callable[[str], None]) -> Callable[[int], None]:
    """Says now and then how many items are done; all of GSM8K take a while."""
    return lambda done: say(f"accuracy gate: {done} items are answered") if done % SAID_EVERY == 0 else None


async def hold(
    running: RunningHost,
    plan: GatePlan,
    *,
    label: str,
    concurrency: int,
    first: AccuracyRun | None = None,
    observe: Callable[[int], None] = lambda _: None,
) -> GatesDocument:
    """Ask and judge; the engine is idle before and after. first: the arm that this one is held against.

    Raises EngineError when the engine dies or does not come to rest.
    """
    if running.facts.model == MODEL_ID and running.facts.kind == "attached":
        plan = GatePlan(None, NO_ANSWERS)  # `slo-bench simulate`, whose text is always the same words
    if plan.item_set is None:
        return not_held(running.facts.kind, plan, label=label)
    budget_tokens = await budget(running, plan)
    await running.wait_idle(IDLE_LIMIT_S)
    run = await run_gsm8k(
        running.engine,
        plan.item_set,
        label=label,
        concurrency=concurrency,
        token_budget=budget_tokens,
        deadline_s=longest_s(len(plan.item_set.items), concurrency, budget_tokens),
        observe=observe,
    )
    running.check()
    await running.wait_idle(IDLE_LIMIT_S)
    verdict = judge_accuracy(run, floor=plan.floor, first=first)
    return gates_document(label=label, engine=running.facts.kind, verdict=verdict, run=run, floor=plan.floor)


def not_held(engine: EngineKind, plan: GatePlan, *, label: str) -> GatesDocument:
    """The document of a gate that cannot apply."""
    return gates_document(label=label, engine=engine, verdict=not_applicable(plan.why_not), run=None, floor=plan.floor)


def longest_s(items: int, concurrency: int, budget_tokens: int) -> float:
    """The most that all items may take together, seconds."""
    return max(_LEAST_DEADLINE_S, math.ceil(items / concurrency) * budget_tokens * SLOWEST_TOKEN_S)


def first_arm(directory: Path) -> AccuracyRun:
    """The answers of a run that was gated before. Raises UsageError where it was not."""
    run = read_document(directory / GATES_NAME, GatesDocument).run()
    if run is None:
        raise UsageError(f"{directory / GATES_NAME} has no answers to compare with: its gate did not apply")
    return run
