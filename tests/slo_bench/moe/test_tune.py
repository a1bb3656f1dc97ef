"""A search from end to end on a kernel whose true times are known, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_kernel import FP8, ROUTINGS, SHAPE, MadeUp, batches, best_choice, space, truth_s

from slo_bench.moe.bench import Layer
from slo_bench.moe.space import KernelConfig, published_space
from slo_bench.moe.tune import Tuned, Tuner
from slo_bench.moe.tune_search import Search, Space
from slo_bench.moe.tuning_journal import Begun, Journal, read_journal
from traffic.errors import EngineError
from traffic.virtual_time import run_virtual

ABOUT = {"shape": "made up"}
NEAR = [
    KernelConfig(m, n, 128, group, 4, stages)
    for m in (16, 32, 64)
    for n in (64, 128)
    for group in (1, 32)
    for stages in (3, 4)
]
BEST = KernelConfig(16, 128, 128, 1, 4, 4)
"""Of NEAR for 16 tokens: narrower tiles are faster under the first routing and slower under the other."""


def tuner(made_up: MadeUp, of: Space, *, gpus: int = 1, **more: Any) -> Tuner:
    search = more.pop("search", None) or Search(of)
    machines = made_up.machines(compilers=4, gpus=gpus)
    return Tuner(search, machines, Layer(SHAPE, FP8), batches(of), **more)


async def kept(made_up: MadeUp, of: Space, path: Path, *, stopped_s: float | None = None) -> Tuned:
    """A search with a journal; stopped_s: when it is killed."""
    search = Search(of)
    before = read_journal(path, ABOUT)
    search.replay(before)
    with Journal(path) as journal:
        if not before:
            journal.append(Begun(about=ABOUT))
        async with asyncio.timeout(stopped_s):
            return await tuner(made_up, of, search=search, journal=journal).run()


def tune(made_up: MadeUp, of: Space, **more: Any) -> Tuned:
    return run_virtual(tuner(made_up, of, **more).run())


def test_it_finds_the_best_that_is_slower_than_the_default_under_no_routing() -> None:
    made_up, of = MadeUp(noise=0.005), space(configs=NEAR)
    tuned = tune(made_up, of)
    assert tuned.is_complete
    assert list(tuned.choices) == [16, 256]
    for size, choice in tuned.choices.items():
        assert truth_s(choice.config, size, "uniform") <= 1.01 * best_choice(of, size)
        assert truth_s(choice.config, size, ROUTINGS[1]) <= truth_s(of.defaults[size], size, ROUTINGS[1])
    assert tuned.choices[16].config == BEST
    assert tuned.choices[16].tried == len(of.configs)
    assert made_up.is_open == 0


def test_the_default_stays_where_nothing_is_faster() -> None:
    of = space((16,), configs=[KernelConfig(256, 32, 64, 64, 8, 2)])
    choice = tune(MadeUp(noise=0.02), of).choices[16]
    assert choice.config == of.defaults[16]
    assert (choice.judged, choice.default_rank, choice.tried) == (None, 1, 2)
    assert len(choice.before.times_s["uniform"]) >= 30


def test_a_crowd_that_is_barely_too_slow_elsewhere_does_not_hide_the_best() -> None:
    def truth(config: KernelConfig, _tokens: int, routing: str) -> float:
        if config == BEST:
            return 0.93e-4 if routing == "uniform" else 1e-4
        if config in NEAR and config.block_n == 64:
            return (0.8 + 0.0001 * config.num_stages) * 1e-4 if routing == "uniform" else 1.015e-4
        return 1e-4

    choice = tune(MadeUp(noise=0.005, truth=truth), space((16,), configs=[BEST, *NEAR])).choices[16]
    assert choice.config == BEST


def test_a_wrong_result_is_not_chosen_and_a_configuration_that_kills_is_found_and_left_out() -> None:
    killer = KernelConfig(32, 128, 128, 1, 4, 4)
    made_up = MadeUp(wrong=frozenset({BEST}), kills=frozenset({killer}), uncompilable=frozenset({NEAR[0]}))
    run = tuner(made_up, space((16,), configs=NEAR))
    choice = run_virtual(run.run()).choices[16]
    assert choice.config not in {BEST, killer, NEAR[0]}
    assert set(run.search.failures) == {killer, NEAR[0]}
    assert "ended the process" in run.search.failures[killer]
    assert made_up.opened > 1
    assert made_up.is_open == 0


def test_a_default_that_cannot_run_is_one_line() -> None:
    of = space((16,), configs=NEAR)
    made_up = MadeUp(kills=frozenset({of.defaults[16]}))
    with pytest.raises(EngineError, match="default for 16 tokens cannot run"):
        tune(made_up, of)
    assert made_up.is_open == 0


def test_a_budget_ends_the_search_with_a_choice_and_says_what_went_beyond_it() -> None:
    of = space()
    some = tune(MadeUp(noise=0.02), of, budget_s=60.0)
    assert not some.is_complete
    assert some.choices[16].tried < len(of.configs)
    assert some.spent_s < 65
    none = tune(MadeUp(noise=0.02), of, budget_s=1e-3)
    assert none.beyond_s == pytest.approx(none.spent_s - 1e-3)
    assert {choice.config for choice in none.choices.values()} <= set(of.defaults.values())


@pytest.mark.parametrize("stopped_share", [0.02, 0.4, 0.6, 0.8, 0.95, 0.99])
def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path: Path, stopped_share: float) -> None:
    of = space(configs=NEAR)
    whole, first, then = MadeUp(), MadeUp(), MadeUp()
    expected = tune(whole, of)
    with pytest.raises(TimeoutError):
        run_virtual(kept(first, of, tmp_path / "tuning.jsonl", stopped_s=stopped_share * expected.spent_s))
    assert first.is_open == 0
    again = run_virtual(kept(then, of, tmp_path / "tuning.jsonl"))
    assert {size: each.config for size, each in again.choices.items()} == {
        size: each.config for size, each in expected.choices.items()
    }
    # What was under way when it was stopped is measured again, nothing else.
    assert len(first.cases) + len(then.cases) <= len(whole.cases) + 2 * len(of.configs)


def test_a_search_that_is_done_measures_nothing_again(tmp_path: Path) -> None:
    of = space(configs=NEAR)
    first = run_virtual(kept(MadeUp(noise=0.02), of, tmp_path / "tuning.jsonl"))
    made_up = MadeUp(noise=0.02)
    again = run_virtual(kept(made_up, of, tmp_path / "tuning.jsonl"))
    assert made_up.cases == []
    assert again.choices == first.choices
    assert again.spent_s > first.spent_s


def test_sizes_are_dealt_over_gpus() -> None:
    of = space((16, 64, 256), configs=NEAR)
    made_up = MadeUp()
    tuned = tune(made_up, of, gpus=2)
    assert made_up.opened == 2
    assert list(tuned.choices) == [16, 64, 256]
    assert made_up.is_open == 0


def test_what_vllm_ships_is_compiled_early_and_timed_at_the_end() -> None:
    shipped = KernelConfig(256, 32, 64, 64, 8, 2)
    made_up = MadeUp()
    of = space((16,), configs=[*NEAR, shipped], shipped={16: shipped})
    run = tuner(made_up, of)
    run_virtual(run.run())
    assert sum(case.entry == shipped.entry() for case in made_up.cases[-len(ROUTINGS) * 20 :]) == len(ROUTINGS)


def test_progress_tells_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    tell: Callable[[str], None] = told.append
    of = space((16,), configs=list(published_space())[:400:4])
    tune(MadeUp(), of, tell=tell)
    assert f"of {len(of.configs)} compiled" in told[0]
    assert "min left" in told[0]
    left = [float(line.split("about ")[1].split()[0]) for line in told if "about" in line]
    assert left == sorted(left, reverse=True)
    assert capsys.readouterr().out == ""
