"""A comparison that was stopped goes on where it stood: pairs are kept, half-finished ones are measured again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from two_arms import PLAN, Scene, Seen, scene

from gates.comparison import Claim
from gates.slo import parse_objective
from gates.starts import MIN_STARTS
from reports.effect_document import EffectDocument
from reports.run_directory import read_document, to_json
from slo_bench.compare.earlier import EarlierPart, read_part
from slo_bench.compare.plan import ComparisonPlan
from traffic.errors import InvalidMeasurement, UsageError

DESIGNS = {
    "coresident": PLAN,
    "two of each": replace(PLAN, instances=2, pairs=6),
    "restart": replace(PLAN, placement="restart", instances=2, pairs=4),
    "attached": replace(PLAN, placement="attached"),
}


class Killed(Exception):  # noqa: N818 - a kill is no error
    """Nothing is written after it, as after a SIGKILL."""


@dataclass
class Deadly(Seen):
    """A view in which the process is killed when a block, or a warm-up, is about to begin."""

    left: int = 0

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "bracket" and value:
            self.left -= 1
            if self.left < 0:
                raise Killed


def killed(directory: Path, plan: ComparisonPlan, after: int) -> bool:
    """Run it until so many warm-ups and blocks were begun; False where it came to its end before."""
    part = read_part(directory, plan) if directory.exists() else None
    try:
        scene(seen=Deadly(left=after)).run(directory, plan, part)
    except Killed:
        return True
    return False


def resumed(directory: Path, plan: ComparisonPlan, made: Scene | None = None) -> EffectDocument:
    return (made or scene()).run(directory, plan, read_part(directory, plan))


def order(document: EffectDocument) -> Sequence[tuple[int, bool]]:
    return [(row.number, row.a_first) for row in document.pairs]


def stored(directory: Path) -> EffectDocument:
    return read_document(directory / "effect.json", EffectDocument)


@pytest.mark.process
@pytest.mark.parametrize("design", DESIGNS)
def test_stopped_before_any_block_it_comes_to_the_same_decision(design: str, tmp_path: Path) -> None:
    plan = DESIGNS[design]
    whole = scene().run(tmp_path / "whole", plan)
    for after in count():
        directory = tmp_path / str(after)
        if not killed(directory, plan, after):
            break
        kept = stored(directory).pairs
        document = resumed(directory, plan)
        assert document.pairs[: len(kept)] == kept
        assert order(document) == order(whole)
        assert document.outcome == whole.outcome
        # New starts may be what was missing to speak of starts in general; they take nothing away.
        more = [Claim.REAL] if document.starts_per_arm >= MIN_STARTS else []
        assert document.primary.claim in [whole.primary.claim, *more]
        assert document.primary.share == pytest.approx(whole.primary.share, abs=1e-6)
        assert all((directory / block.requests_file).exists() for row in document.pairs for block in (row.a, row.b))
    assert after == 2 * (plan.pairs + plan.instances)


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, EffectDocument, Path]:
    """A comparison that was killed in the middle of its second pair, and resumed."""
    made, directory = scene(), tmp_path_factory.mktemp("gone on") / "x"
    assert killed(directory, PLAN, 2 + 2 + 1)  # two warm-ups, the first pair and a block of the second
    return made, resumed(directory, PLAN, made), directory


GoneOn = tuple[Scene, EffectDocument, Path]


def test_pairs_stand_on_the_starts_they_ran_on_and_the_record_says_so(gone_on: GoneOn) -> None:
    made, document, _ = gone_on
    assert made.blocks == "A0 A0 B0 B0 B0 A0 A0 B0"
    assert [(row.a.start, row.b.start) for row in document.pairs] == [(0, 0), (1, 1), (1, 1)]
    assert [[each.directory for each in arm.starts] for arm in (document.a, document.b)] == [
        ["starts/A-1", "starts/A-2"],
        ["starts/B-1", "starts/B-2"],
    ]
    assert document.starts_per_arm == 2
    assert len(document.resumed_utc) == 1
    assert document.faults[0].startswith("stopped and resumed 1 time: its pairs come from 2 starts of each arm")
    assert "goes on after 1 pair, on new starts of the servers" in made.seen.lines


def test_a_block_without_its_partner_counts_for_nothing_and_keeps_its_name(gone_on: GoneOn) -> None:
    _, document, directory = gone_on
    assert [(row.a.ran, row.b.ran) for row in document.pairs] == [(1, 2), (5, 4), (6, 7)]
    assert len(list((directory / "blocks").iterdir())) == 7


@pytest.mark.process
def test_where_servers_take_turns_the_start_under_way_is_measured_again(tmp_path: Path) -> None:
    plan = DESIGNS["restart"]
    killed(tmp_path, plan, 6 + 4)  # the first start of both arms, then B's second and the warm-up of A's
    document = resumed(tmp_path, plan)
    assert [(row.a.start, row.b.start) for row in document.pairs] == [(0, 0), (0, 0), (2, 2), (2, 2)]
    assert [each.directory for each in document.b.starts] == ["starts/B-1", "starts/B-3"]


def test_to_connect_again_to_servers_of_somebody_else_starts_none(tmp_path: Path) -> None:
    plan = DESIGNS["attached"]
    killed(tmp_path, plan, 2 + 2 + 1)
    document = resumed(tmp_path, plan)
    assert document.starts_per_arm == 1
    assert len(document.a.starts) == 2
    assert "nobody saw" in document.faults[0]


def test_partners_of_all_parts_share_the_ramp_of_the_first(tmp_path: Path) -> None:
    plan = replace(PLAN, block=replace(PLAN.block, ramp_s=None, window_s=2.0, rate_rps=2.0))
    killed(tmp_path, plan, 4)
    path = tmp_path / "effect.json"
    path.write_text(to_json(stored(tmp_path).model_copy(update={"ramp_s": 16.5})))
    assert resumed(tmp_path, plan).ramp_s == 16.5


@pytest.mark.process
def test_time_that_was_spent_counts(tmp_path: Path) -> None:
    plan = replace(PLAN, pairs=50, max_minutes=0.9)
    whole = scene().run(tmp_path / "whole", plan)
    killed(tmp_path / "x", plan, 2 + 4)
    spent_s = stored(tmp_path / "x").spent_s
    assert 0 < spent_s < 0.9 * 60
    document = resumed(tmp_path / "x", plan)
    assert (document.outcome, whole.outcome) == ("unfinished", "unfinished")
    assert len(document.pairs) < len(whole.pairs)  # the second warm-up took its part
    assert document.spent_s <= 0.9 * 60
    assert document.longest_step_s >= stored(tmp_path / "whole").longest_step_s * 0.9


@pytest.mark.process
def test_a_part_whose_time_is_up_starts_no_server(tmp_path: Path) -> None:
    plan = replace(PLAN, pairs=50, max_minutes=0.9)
    before = scene().run(tmp_path, plan)
    made = scene()
    document = resumed(tmp_path, plan, made)
    assert made.events == []
    assert (document.outcome, document.reasons, document.resumed_utc) == ("unfinished", before.reasons, [])
    more = resumed(tmp_path, replace(plan, max_minutes=1.3))
    assert len(more.pairs) > len(before.pairs)


def test_one_that_was_stopped_before_its_last_word_starts_no_server(gone_on: GoneOn, tmp_path: Path) -> None:
    _, whole, before = gone_on
    directory = Path(shutil.copytree(before, tmp_path / "x"))
    (directory / "effect.json").write_text(to_json(whole.model_copy(update={"outcome": "unfinished"})))
    made = scene()
    document = resumed(directory, PLAN, made)
    assert (document.outcome, document.effects, document.resumed_utc) == ("concluded", whole.effects, whole.resumed_utc)
    assert made.events == []


def test_arms_that_were_seen_to_be_incomparable_stay_so(gone_on: GoneOn, tmp_path: Path) -> None:
    _, whole, before = gone_on
    directory = Path(shutil.copytree(before, tmp_path / "x"))
    left = whole.model_copy(update={"outcome": "unfinished", "reasons": ["B does not keep up"], "ended_utc": None})
    (directory / "effect.json").write_text(to_json(left))
    made = scene()
    document = resumed(directory, PLAN, made)
    assert (document.outcome, document.reasons) == ("not comparable", ["B does not keep up"])
    assert made.events == []


def test_an_invalid_pair_is_measured_again(tmp_path: Path) -> None:
    class Late(Seen):
        """A client that stands still in every block of the third pair."""

        def progress(self, *_: object) -> None:
            if self.bracket.startswith("pair 3"):
                loop: Any = asyncio.get_running_loop()
                loop._virtual_now_s += 1.0

    with pytest.raises(InvalidMeasurement):
        scene(seen=Late()).run(tmp_path, PLAN)
    assert stored(tmp_path).outcome == "invalid"
    document = resumed(tmp_path, PLAN)
    assert (document.outcome, document.reasons, len(document.pairs)) == ("concluded", [], 3)
    assert len(document.discarded) >= 3


def test_an_end_is_an_answer_and_time_that_ran_out_is_none(gone_on: GoneOn) -> None:
    _, whole, directory = gone_on
    part = read_part(directory, PLAN)
    assert part.answer == whole
    assert replace(part, document=whole.model_copy(update={"outcome": "unfinished"})).answer is None
    assert EarlierPart().answer is None


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (replace(PLAN, pairs=4), "blocks was 3, is 4"),
        (replace(PLAN, until_share=0.01), "until_resolution was null, is 0.01"),
        (replace(PLAN, block=replace(PLAN.block, rate_rps=6.0)), "request_rate was 5.0, is 6.0"),
        (
            replace(PLAN, block=replace(PLAN.block, load=replace(PLAN.block.load, seed=1))),
            "seed was 0, is 1",
        ),
        (
            replace(PLAN, block=replace(PLAN.block, load=replace(PLAN.block.load, slo=(parse_objective("e2e:p9:1"),)))),
            "slo was ",
        ),
    ],
)
def test_another_design_is_refused_with_the_difference(now: ComparisonPlan, reason: str, begun: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot be resumed: .*{reason}"):
        read_part(begun, now)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that was killed after its first pair."""
    directory = tmp_path_factory.mktemp("begun")
    killed(directory, PLAN, 4)
    return directory


def test_a_row_that_its_file_contradicts_is_refused(begun: Path, tmp_path: Path) -> None:
    document = stored(begun)
    (tmp_path / "blocks").mkdir()
    for name in ("01-A", "02-B"):  # arm A's file under both names
        (tmp_path / f"blocks/{name}.parquet").write_bytes((begun / "blocks/01-A.parquet").read_bytes())
    (tmp_path / "effect.json").write_text(to_json(document))
    with pytest.raises(UsageError, match=r"02-B\.parquet and its row in effect\.json disagree"):
        read_part(tmp_path, PLAN)


def test_an_arm_that_serves_another_model_than_before_is_refused(tmp_path: Path) -> None:
    killed(tmp_path, PLAN, 4)
    with pytest.raises(UsageError, match="arm A was m, version None, and is n, version None"):
        resumed(tmp_path, PLAN, scene(model={"A": "n", "B": "n"}))


def test_parts_are_counted_so_that_no_text_is_sent_twice(begun: Path) -> None:
    part = read_part(begun, PLAN)
    assert (EarlierPart().number, part.number) == (1, 1)
    assert part.document is not None
    again = replace(part, document=part.document.model_copy(update={"resumed_utc": ["2026-12-01T01:00:00+00:00"]}))
    assert again.number == 2
