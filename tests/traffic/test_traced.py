"""Requests of a trace: its rows in order, its blocks as equal text, and never the same text in the next probe."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.arrivals import Replay
from traffic.errors import UsageError
from traffic.prompts import TextKey, TokenRatio
from traffic.schedule import Draw, endless_requests, open_loop
from traffic.traced import Traced
from traffic.traces import Trace, read_trace
from traffic.workload import scaled_max

DATA = Path(os.environ.get("SLO_BENCH_DATA", Path(__file__).parents[3] / "shared" / "data"))
KEY = TextKey(seed=0, start=0, rate_rps=8.0, repeat=0)
WORDS = TokenRatio()

BLOCK = 32
PLAIN = Trace("plain", np.arange(7.0), np.array([40, 50, 60, 70, 80, 90, 100]), np.array([1, 2, 3, 4, 5, 6, 7]))
HASHED = replace(
    PLAIN,
    name="hashed",
    input_tokens=np.array([96, 90, 128, 64, 96, 40, 96]),
    blocks=((1, 2, 3), (1, 2, 4), (1, 2, 3, 5), (6, 2), (1, 2, 3), (1, 7), (8, 9, 10)),
    block_tokens=BLOCK,
)
NUMBERS = (1, 2, 3, 4, 5, 6, 7)


def rows_of(workload: Traced, n: int, seed: int = 0, repeat: int = 0) -> list[int]:
    rows = workload.draw(seed, repeat, n).rows
    assert rows is not None
    return [int(row) % len(NUMBERS) for row in rows]


def texts(workload: Traced, n: int, ratio: TokenRatio = WORDS, key: TextKey = KEY, scale: float = 1.0) -> list[str]:
    made = workload.texts(workload.draw(key.seed, key.repeat, n, scale), ratio, key)
    assert [[each.role for each in messages] for messages in made] == [["user"]] * n
    return [messages[0].text for messages in made]


def common(one: str, other: str) -> int:
    """Words that two texts begin with alike."""
    pairs = list(zip(one.split(), other.split(), strict=False))
    return next((index for index, (here, there) in enumerate(pairs) if here != there), len(pairs))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), repeat=st.integers(0, 9), n=st.integers(1, 40))
def test_rows_come_in_their_order_and_again_from_the_beginning(seed: int, repeat: int, n: int) -> None:
    rows = rows_of(Traced(PLAIN), n, seed, repeat)
    assert all(after == (before + 1) % 7 for before, after in pairwise(rows))
    lengths = Traced(PLAIN).draw(seed, repeat, n)
    assert lengths.input_tokens.tolist() == PLAIN.input_tokens[rows].tolist()
    assert lengths.output_tokens.tolist() == PLAIN.output_tokens[rows].tolist()


def test_seed_and_repeat_choose_where_to_begin() -> None:
    assert len({rows_of(Traced(PLAIN), 1, seed)[0] for seed in range(40)}) == 7
    assert len({rows_of(Traced(PLAIN), 1, 0, repeat)[0] for repeat in range(40)}) == 7


def test_a_trace_whose_requests_all_come_at_one_moment_still_has_lengths() -> None:
    flat = Traced(replace(PLAIN, times_s=np.zeros(7)))
    assert {rows_of(flat, 1, seed)[0] for seed in range(60)} == set(range(7))


def test_long_prompts_are_cut_and_the_share_is_said() -> None:
    cut = Traced(PLAIN, 70)
    assert cut.draw(0, 0, 70).input_tokens.max() == 70
    assert (cut.max_input_tokens, cut.max_output_tokens, cut.name) == (70, 7, "plain-cut-70")
    assert cut.source.endswith("42.9 % of the prompts cut to 70 tokens")
    assert Traced(PLAIN, 1000).max_input_tokens == Traced(PLAIN).max_input_tokens == 100


@pytest.mark.parametrize("scale", [0.1, 0.5, 1.7])
def test_lengths_are_scaled_within_their_bounds(scale: float) -> None:
    workload = Traced(PLAIN)
    lengths = workload.draw(0, 0, 7, scale)
    assert (int(lengths.input_tokens.max()), int(lengths.output_tokens.max())) == scaled_max(workload, scale)
    assert lengths.output_tokens.min() >= 1


def test_a_scale_that_is_not_positive_is_refused() -> None:
    with pytest.raises(UsageError, match="must be positive"):
        Traced(PLAIN).draw(0, 0, 5, 0.0)


@pytest.mark.parametrize("trace", [PLAIN, HASHED])
def test_a_prompt_has_exactly_the_words_asked_for(trace: Trace) -> None:
    for scale in (1.0, 0.3):
        lengths = Traced(trace).draw(0, 0, 21, scale)
        assert [len(text.split()) for text in texts(Traced(trace), 21, scale=scale)] == lengths.input_tokens.tolist()


def test_prompts_of_a_trace_without_blocks_share_nothing() -> None:
    made = texts(Traced(PLAIN), 50)
    assert len({text[:60] for text in made}) == 50
    assert not Traced(PLAIN).draw(0, 0, 50).shared_tokens.any()


def test_equal_first_blocks_are_equal_text_and_counted_as_shared() -> None:
    workload = Traced(HASHED)
    rows = rows_of(workload, 7)
    made = dict(zip(rows, texts(workload, 7), strict=True))
    assert common(made[0], made[2]) == 96
    assert common(made[0], made[1]) == 64
    assert common(made[0], made[5]) == 32
    assert common(made[0], made[3]) == 0
    assert made[0] == made[4]
    shared = dict(zip(rows, workload.draw(0, 0, 7).shared_tokens.tolist(), strict=True))
    for index, row in enumerate(rows):
        earlier = [common(made[row], made[other]) for other in rows[:index]]
        assert shared[row] == max(earlier, default=0)


@settings(deadline=None, max_examples=25)
@given(per_word=st.floats(1.0, 2.0), overhead=st.floats(0.0, 20.0), scale=st.floats(0.3, 1.5), seed=st.integers(0, 20))
def test_a_measured_ratio_keeps_lengths_and_the_blocks_in_common(
    per_word: float, overhead: float, scale: float, seed: int
) -> None:
    ratio, key = TokenRatio(per_word, overhead), replace(KEY, seed=seed)
    workload = Traced(HASHED)
    lengths = workload.draw(seed, 0, 7, scale)
    made = texts(workload, 7, ratio, key, scale)
    for text, tokens in zip(made, lengths.input_tokens.tolist(), strict=True):
        assert len(text.split()) == ratio.words(tokens)
    by_row = dict(zip(rows_of(workload, 7, seed), made, strict=True))
    shorter = min(len(by_row[0].split()), len(by_row[1].split()))
    alike = min(shorter, round(2 * BLOCK * scale / per_word))
    # Other blocks may begin with one word by chance, seldom with two.
    assert alike <= common(by_row[0], by_row[1]) <= alike + 3


def test_a_trace_that_begins_again_does_so_in_other_words() -> None:
    workload = Traced(HASHED)
    rows = rows_of(workload, 21)
    made = texts(workload, 21)
    assert rows[:7] == rows[7:14]
    openings = [{" ".join(text.split()[:16]) for text in made[begin : begin + 7]} for begin in (0, 7, 14)]
    assert len(set.union(*openings)) == sum(len(each) for each in openings)
    assert (
        workload.draw(0, 0, 21).shared_tokens.reshape(3, 7).tolist()
        == [workload.draw(0, 0, 7).shared_tokens.tolist()] * 3
    )


def test_no_block_comes_again_in_another_probe() -> None:  # R17
    keys = [
        KEY,
        replace(KEY, seed=1),
        replace(KEY, start=1),
        replace(KEY, rate_rps=8.1),
        replace(KEY, repeat=1),
        replace(KEY, attempt=1),
        replace(KEY, rate_rps=None),
    ]
    openings = [{" ".join(text.split()[:16]) for text in texts(Traced(HASHED), 14, key=key)} for key in keys]
    assert len(set.union(*openings)) == sum(len(each) for each in openings)


def test_a_closed_loop_has_the_blocks_in_common_too() -> None:
    make = endless_requests(Draw(Traced(HASHED), 0, 0), WORDS)
    made = dict(zip(rows_of(Traced(HASHED), 7), [make(index).messages[0].text for index in range(7)], strict=True))
    assert common(made[0], made[2]) == 96
    assert common(made[0], made[3]) == 0


def test_a_schedule_says_what_share_its_prompts_repeat_and_that_it_was_asked_for() -> None:
    plan = open_loop(
        Draw(Traced(HASHED), 0, 0, arrivals=Replay(HASHED)),
        rate_rps=1.0,
        ramp_s=0.0,
        duration_s=7.0,
        drain_limit_s=lambda _: 0.0,
        text=WORDS,
    )
    lengths = Traced(HASHED).draw(0, 0, len(plan.requests))
    assert plan.window.shared_share == lengths.shared_tokens.sum() / lengths.input_tokens.sum() > 0.3
    assert len({each.messages for each in plan.requests}) < len(plan.requests)
    assert plan.window.duplicate_prompts == 0


def test_mooncake_shares_what_its_hashes_say() -> None:
    path = DATA / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent; SLO_BENCH_DATA names the folder")
    workload = Traced(read_trace(path, "mooncake"))
    lengths = workload.draw(0, 0, 800)
    assert lengths.rows is not None
    blocks = workload.trace.blocks
    assert blocks is not None
    known: set[int] = set()
    for place, shared, tokens in zip(
        lengths.rows.tolist(), lengths.shared_tokens.tolist(), lengths.input_tokens.tolist(), strict=True
    ):
        # Its hashes stand for everything before them too, so a block that was seen was seen with its whole prefix.
        seen = sum(block in known for block in blocks[place])
        assert shared == min(seen * 512, tokens)
        known |= set(blocks[place])
