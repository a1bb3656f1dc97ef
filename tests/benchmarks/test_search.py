"""The benchmark of searches measures the product: its compiled loop and its windows are held against it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "search"

LOOPS = """
from dataclasses import replace
import numpy as np
from compiled import drive
from settings import SETTINGS
from traffic.step_model import EngineSettings, StepModel
from traffic.workload import CHAT_MIX

tight = dict(kv_cache_tokens=60_000, max_num_batched_tokens=2048)
tight = EngineSettings(**tight, start_offset_share=0.01, first_shape_cost_s=0)
engines = [*(each.engine for each in SETTINGS.values()), tight]
preempted = 0
for engine in engines:
    for rate in (8.0, 14.0, 18.0):
        due = SETTINGS["noise"].arrivals.due_s(rate, 3, 1, 120.0)
        lengths = CHAT_MIX.draw(3, 1, len(due))
        load = (due, lengths.input_tokens, lengths.output_tokens)
        model = StepModel(engine, 3, 1)
        whole = model.drive(*load, until_s=110.0)
        first, _, ended = drive(engine, (3, 1), 0.0, load, 110.0)
        assert np.array_equal(first, whole.first_token_s, equal_nan=True), (engine, rate)
        assert np.array_equal(ended, whole.ended_s, equal_nan=True), (engine, rate)
        preempted += model.preemptions_total
assert preempted > 100
print("equal")
"""

WINDOWS = """
from fast import FastServer, long_of
from gates.margin import window_sample
from gates.referee import RateSoFar, SloReferee
from gates.verdict import judge_probe
from server import Server
from settings import SETTINGS

stops = set()
for name, setting in SETTINGS.items():
    alone = [(8.0, 40.0, None), (11.0, 120.0, None), (13.0, 120.0, None)]
    for rate, seconds, so_far in [*alone, (16.0, 120.0, RateSoFar([], 3)), (7.0, 200.0, RateSoFar([], 3))]:
        facts = Server(setting, 7).window(rate, 2, seconds, lambda plan: SloReferee(setting.slo, plan, so_far))
        verdict = judge_probe(facts, setting.slo)
        one = window_sample(verdict, long_of(setting.arrivals))
        server = FastServer(setting, 7)
        other = server.window(rate, 2, seconds, so_far)
        assert (facts.load_s, facts.stop) == (server.load_s, server.stops[0][1]), (name, rate)
        assert (one.outcome, one.is_whole, one.failed) == (other.outcome, other.is_whole, other.failed), (name, rate)
        assert [(a.n, a.over) for a in one.results] == [(b.n, b.over) for b in other.results], (name, rate)
        for a, b in zip(one.readings, other.readings, strict=True):
            assert (a is None) == (b is None), (name, rate)
            if a is not None and b is not None:
                assert (a.blocks, a.degrees) == (b.blocks, b.degrees), (name, rate)
                assert abs(a.block_sd - b.block_sd) < 1e-9, (name, rate)
                assert abs((a.log_value or 0) - (b.log_value or 0)) < 0.002, (name, rate, a, b)
        stops.add(facts.stop.name)
assert stops >= {"COMPLETE", "LOST", "PROVEN"}, stops
print("equal")
"""


def run(*argv: str) -> str:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=240, check=True).stdout


@pytest.mark.process
@pytest.mark.parametrize("check", [LOOPS, WINDOWS], ids=["loops", "windows"])
def test_what_is_computed_as_arrays_is_what_the_product_does(check: str) -> None:
    if importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed: the benchmark needs it")
    assert run("-c", f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n{check}").strip() == "equal"


@pytest.mark.process
def test_its_tables_have_a_row_for_each_strategy_and_distance() -> None:
    if importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed: the benchmark needs it")
    some = ("--seeds", "2", "--jobs", "1", "--settings", "gentle")
    searches, proofs = run(str(FOLDER), *some), run(str(FOLDER), *some, "--proofs")
    for strategy in ("published", "economical", "doubling"):
        assert f"| {strategy}, gentle |" in searches
        assert f"| {strategy}, all |" in searches
    assert proofs.count("| gentle |") == 5
