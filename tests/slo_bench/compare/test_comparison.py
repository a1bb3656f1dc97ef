"""A comparison from the inside: which server gets which block, what is repeated, when it ends, what is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import Act, Scripted, ScriptedHost, answer, fail, silent
from two_arms import BLOCK, LOAD, PLAN, Scene, Seen, scene

from gates.comparison import Claim
from gates.slo import parse_objective
from reports.effect_document import EffectDocument
from reports.requests import read_requests
from reports.run_directory import EngineDocument, read_document
from slo_bench.compare.comparison import TRIES, run_comparison
from slo_bench.compare.servers import CompareArm
from slo_bench.hosts.simulated import SimulatedHost
from traffic.errors import EngineError, InvalidMeasurement, UsageError
from traffic.records import Flight, Request
from traffic.server_facts import ServerSample
from traffic.step_model import EngineSettings
from traffic.virtual_time import run_virtual

QUICK = EngineSettings(first_shape_cost_s=0.0)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, EffectDocument, Path]:
    """A comparison in which nothing goes wrong."""
    made, directory = scene(), tmp_path_factory.mktemp("usual")
    return made, made.run(directory), directory


Usual = tuple[Scene, EffectDocument, Path]


def test_blocks_run_a_b_b_a_on_servers_that_are_all_up(usual: Usual) -> None:
    made, document, _ = usual
    assert made.blocks == "A0 A0 B0 B0 A0 B0 B0 A0 A0 B0"
    assert made.events[:2] == ["up A0", "up B0"]
    assert made.events[-2:] == ["down B0", "down A0"]
    assert [row.a_first for row in document.pairs] == [True, False, True]
    assert [(row.a.ran, row.b.ran) for row in document.pairs] == [(1, 2), (4, 3), (5, 6)]


def test_partners_share_their_schedule_and_pairs_do_not(usual: Usual) -> None:
    _, document, directory = usual

    def due_s(file: str) -> list[float]:
        return [record.due_s for record in read_requests(directory / file).records if record.in_cohort]

    partners = [(due_s(row.a.requests_file), due_s(row.b.requests_file)) for row in document.pairs]
    assert all(a == b for a, b in partners)
    assert len({tuple(a) for a, _ in partners}) == 3


def test_what_differs_is_found(usual: Usual) -> None:
    _, document, _ = usual
    assert document.outcome == "concluded"
    assert document.primary.claim is Claim.BETWEEN_INSTANCES
    assert document.primary.share == pytest.approx(-0.1, abs=1e-6)


def test_each_server_has_its_documents_and_each_block_its_rows(usual: Usual) -> None:
    _, document, directory = usual
    assert read_document(directory / "starts" / "A-1" / "engine.json", EngineDocument).kind == "attached"
    assert document.b.starts[0].directory == "starts/B-1"
    assert len(list((directory / "blocks").iterdir())) == 6
    assert read_document(directory / "effect.json", EffectDocument) == document


def test_equal_arms_are_below_resolution(tmp_path: Path) -> None:
    equal = Scene({"A": answer(0.1, 0.010), "B": answer(0.1, 0.010)}).run(tmp_path)
    assert equal.primary.claim is Claim.BELOW_RESOLUTION


def test_restarts_have_one_server_up_at_a_time_and_share_schedules(tmp_path: Path) -> None:
    made = scene()
    document = made.run(tmp_path, replace(PLAN, placement="restart", instances=2, pairs=4))
    ups = [event for event in made.events if not event.startswith("load")]
    assert ups == ["up A0", "down A0", "up B0", "down B0", "up B1", "down B1", "up A1", "down A1"]
    assert made.blocks == "A0 A0 A0 A0 B0 B0 B0 B0 B1 B1 B1 B1 A1 A1 A1 A1"
    assert [(row.a.start, row.b.start, row.a_first) for row in document.pairs] == [
        (0, 0, True),
        (0, 0, True),
        (1, 1, False),
        (1, 1, False),
    ]
    assert [len(arm.starts) for arm in (document.a, document.b)] == [2, 2]


def test_several_servers_of_an_arm_meet_those_of_the_other(tmp_path: Path) -> None:
    document = scene().run(tmp_path, replace(PLAN, instances=2, pairs=6))
    assert [(row.a.start, row.b.start) for row in document.pairs[:4]] == [(0, 0), (1, 1), (0, 1), (1, 0)]
    assert document.starts_per_arm == 2
    assert document.offset_source == "measured"


def lagging(blocks: Collection[int], act: Act) -> Act:
    """Hold up the whole client in these blocks of a server, warm-up included."""
    seen = [0]

    async def lag(request: Request, flight: Flight) -> None:
        if request.index == 0:
            seen[0] += 1
        if seen[0] in blocks and request.index == 8:
            loop: Any = asyncio.get_running_loop()
            loop._virtual_now_s += 1.0
        await act(request, flight)

    return lag


def test_an_invalid_block_is_repeated_with_its_partner_and_fresh_text(tmp_path: Path) -> None:
    made = Scene({"A": answer(0.1, 0.010), "B": lagging({3}, answer(0.1, 0.009))})
    document = made.run(tmp_path)
    assert made.blocks == "A0 A0 B0 B0 A0 B0 A0 B0 B0 A0 A0 B0"
    assert [(row.number, row.arm) for row in document.discarded] == [(0, "A"), (0, "B")]
    assert "stood still" in " ".join(document.discarded[1].block.invalid_reasons)
    assert len(document.pairs) == 3
    assert any("INVALID, measured again" in line for line in made.seen.lines)
    assert any("2 blocks measured again" in fault for fault in document.faults)


def test_a_first_block_that_is_invalid_spares_its_partner(tmp_path: Path) -> None:
    made = Scene({"A": lagging({3}, answer(0.1, 0.010)), "B": answer(0.1, 0.009)})
    made.run(tmp_path)
    assert made.blocks == "A0 A0 B0 B0 A0 A0 B0 B0 A0 A0 B0"


def test_a_pair_that_stays_invalid_ends_it_and_is_written_down(tmp_path: Path) -> None:
    made = Scene({"A": lagging(range(3, 99), answer(0.1, 0.010)), "B": answer(0.1, 0.009)})
    with pytest.raises(InvalidMeasurement, match=f"pair 1 is invalid {TRIES} times"):
        made.run(tmp_path)
    document = read_document(tmp_path / "effect.json", EffectDocument)
    assert document.outcome == "invalid"
    assert "pair 1 is invalid" in document.reasons[0]
    assert len(document.discarded) == TRIES
    assert made.events[-2:] == ["down B0", "down A0"]


def test_a_restarts_invalid_block_is_repeated_alone(tmp_path: Path) -> None:
    made = Scene({"A": answer(0.1, 0.010), "B": lagging({3}, answer(0.1, 0.009))})
    document = made.run(tmp_path, replace(PLAN, placement="restart", instances=2, pairs=4))
    assert made.blocks.startswith("A0 A0 A0 A0 B0 B0 B0 B0 B0")
    assert [(row.number, row.arm) for row in document.discarded] == [(0, "B")]
    with pytest.raises(InvalidMeasurement, match="a block of pair 1 is invalid"):
        Scene({"A": lagging(range(3, 99), answer()), "B": answer()}).run(
            tmp_path / "b", replace(PLAN, placement="restart", instances=2, pairs=4)
        )


def test_an_arm_that_fails_requests_is_not_compared_by_the_rest(tmp_path: Path) -> None:
    act = answer(0.1, 0.009)

    async def sometimes(request: Request, flight: Flight) -> None:
        await (fail(0.05) if request.index % 9 == 8 else act)(request, flight)

    document = Scene({"A": answer(0.1, 0.010), "B": sometimes}).run(tmp_path)
    assert document.outcome == "not comparable"
    assert "requests of B failed" in document.reasons[0]
    assert len(document.pairs) == 1


def test_a_server_that_does_not_keep_up_ends_it(tmp_path: Path) -> None:
    made = Scene({"A": answer(0.1, 0.010), "B": silent(1)})
    document = made.run(tmp_path)
    assert document.outcome == "not comparable"
    assert document.reasons[0].startswith("B does not keep up with this load")
    both = Scene({"A": silent(1), "B": silent(1)}).run(tmp_path / "both")
    assert both.reasons[0].startswith("neither A nor B keeps up")
    assert len(both.pairs) == 1


def pressed(kv_use_share: float, preemptions: Sequence[int]) -> Callable[[str], ServerSample | None]:
    counts = iter(preemptions)

    def sample(label: str) -> ServerSample | None:
        count = next(counts, preemptions[-1]) if label == "B" else 0
        use = kv_use_share if label == "B" else 0.2
        return ServerSample(0.0, 0.0, engines=1, running=1, waiting=0, kv_use_share=use, preemptions_total=count)

    return sample


@pytest.mark.parametrize(
    ("sample", "words"),
    [(pressed(0.9, [0]), "0 preemptions and 90% of its KV cache"), (pressed(0.3, range(500)), "preemptions and 30%")],
)
def test_servers_side_by_side_that_run_short_of_cache_measure_nothing(
    sample: Callable[[str], ServerSample | None], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidMeasurement, match=words):
        scene(sample=sample).run(tmp_path)
    assert read_document(tmp_path / "effect.json", EffectDocument).outcome == "invalid"


def test_elsewhere_a_full_cache_is_part_of_what_is_compared(tmp_path: Path) -> None:
    document = scene(sample=pressed(0.9, range(500))).run(tmp_path, replace(PLAN, placement="attached"))
    assert document.outcome == "concluded"
    assert any("B preempted" in fault for fault in document.faults)
    assert document.unproven


def test_different_models_are_refused_before_any_load_unless_allowed(tmp_path: Path) -> None:
    made = scene(model={"B": "n"})
    with pytest.raises(UsageError, match="different models, m and n"):
        made.run(tmp_path)
    assert made.blocks == ""
    assert scene(model={"B": "n"}).run(tmp_path, replace(PLAN, allow_different_models=True)).outcome == "concluded"


def test_a_server_that_dies_ends_it_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    made = scene()

    async def die(request: Request, flight: Flight) -> None:
        if made.blocks.count("B0") > 4:
            made.hosts[1].death = EngineError("engine died: out of memory")
        await answer(0.1, 0.009)(request, flight)

    made.acts["B"] = die
    with pytest.raises(EngineError, match="out of memory"):
        made.run(tmp_path)
    document = read_document(tmp_path / "effect.json", EffectDocument)
    assert document.outcome == "unfinished"
    assert len(document.pairs) == 2
    assert document.ended_utc is None


def test_the_time_is_kept(tmp_path: Path) -> None:
    document = scene().run(tmp_path, replace(PLAN, pairs=50, max_minutes=0.9))
    assert document.outcome == "unfinished"
    assert "the time ran out after" in document.reasons[0]
    assert 3 <= len(document.pairs) < 7


@pytest.mark.parametrize(("ttft_s", "ramp_s"), [(0.1, 15.0), (9.0, 2 * 9.03)])
def test_the_ramp_is_twice_the_mean_latency_of_the_warm_up_and_at_least_fifteen_seconds(
    ttft_s: float, ramp_s: float, tmp_path: Path
) -> None:
    load = replace(LOAD, slo=(parse_objective("ttft:p99:20000"),))
    plan = replace(PLAN, block=replace(BLOCK, load=load, ramp_s=None, rate_rps=2.0, window_s=2.0), max_minutes=0.1)
    made = Scene({"A": answer(ttft_s, 0.010), "B": answer(0.1, 0.010)})
    assert made.run(tmp_path, plan).ramp_s == pytest.approx(ramp_s, abs=0.1)


def test_a_closed_loop_has_no_rate(tmp_path: Path) -> None:
    block = replace(BLOCK, rate_rps=None, concurrency=3)
    document = scene().run(tmp_path, replace(PLAN, block=block))
    assert (document.rate_rps, document.concurrency, document.arrivals) == (None, 3, "closed loop")
    assert document.a.starts[0].warm_up is not None
    assert document.a.starts[0].warm_up.rate_rps is None
    assert document.a.starts[0].warm_up.is_warm
    assert document.outcome == "concluded"


def simulated(label: str, settings: EngineSettings) -> CompareArm:
    return CompareArm(label, "simulated", (), lambda start, _log, _pids: SimulatedHost(settings, seed=0, start=start))


@pytest.mark.process
def test_simulated_arms_are_marked_and_repeat_bit_by_bit(tmp_path: Path) -> None:
    plan = replace(PLAN, block=replace(BLOCK, rate_rps=10.0))
    arms = (simulated("A", QUICK), simulated("B", replace(QUICK, step_time_factor=0.8)))
    found = [run_virtual(run_comparison(plan, arms, tmp_path / name, Seen())) for name in ("one", "two")]
    assert found[0] == found[1]
    assert found[0].is_simulated
    assert found[0].primary.share is not None
    assert found[0].primary.share < -0.1
    assert [(row.what, row.a, row.b) for row in found[0].differences] == [("step_time_factor", "1.0", "0.8")]
    assert (tmp_path / "one" / "starts" / "A-1" / "metrics.parquet").exists()


def test_a_server_learns_of_the_processes_of_those_before_it(tmp_path: Path) -> None:
    told: list[frozenset[int]] = []

    @asynccontextmanager
    async def host(number: int, own_pids: Callable[[], Collection[int]]) -> AsyncIterator[Any]:
        told.append(frozenset(own_pids()))
        made = ScriptedHost(Scripted(answer(0.1, 0.01)))
        made.look = lambda: None  # type: ignore[attr-defined]
        made.pids = lambda: frozenset({number})  # type: ignore[attr-defined]
        yield made

    numbers = iter(range(100, 200))
    arm = CompareArm("x", "attached", (), lambda _start, _log, own_pids: host(next(numbers), own_pids))
    run_virtual(run_comparison(PLAN, (arm, arm), tmp_path, Seen()))
    assert told == [frozenset(), frozenset({100})]
