from __future__ import annotations

import pytest
from comparisons import arm_row, block_row, document, pairs

from gates.comparison import Claim
from gates.log_ratio import Estimate
from reports.compare_words import (
    arm_text,
    estimate_text,
    load_text,
    outlook_lines,
    pair_line,
    sentence,
    table_lines,
    trend_lines,
)
from reports.effect_document import PairRow, TrendRow

NOISE = (0.003, -0.004, 0.001, 0.002, -0.002, 0.0)
SHIFTED = [-0.05 + value for value in NOISE]
NESTED = [(start, start) for start in range(4) for _ in range(2)]


def test_between_single_servers_the_sentence_says_so_and_never_real() -> None:
    text = sentence(document(pairs(SHIFTED)))
    assert text.startswith("Between these two server instances mean TPOT of B (kv_cache_dtype=fp8) is 4.9 % lower than")
    assert "6 pairs of blocks" in text
    assert "was not measured" in text
    assert "Real" not in text


def test_a_real_effect_names_its_starts() -> None:
    text = sentence(document(pairs([*SHIFTED, -0.05, -0.048], starts=NESTED), starts_per_arm=4))
    assert text.startswith("Real: at 10.00 req/s mean TPOT of B (kv_cache_dtype=fp8) is 4.9 % lower than that of A")
    assert "8 pairs of blocks, 4 starts of each arm" in text


def test_noise_is_no_effect_found() -> None:
    assert sentence(document(pairs(NOISE))).startswith("No effect found: at 10.00 req/s mean TPOT of B")


def test_an_offset_that_explains_it_is_within_drift() -> None:
    text = sentence(document(pairs(SHIFTED), known_offset_sd=0.05))
    assert text.startswith("Within drift: ")
    assert "The change is not needed to explain it." in text


def test_two_starts_of_each_arm_do_not_speak_for_others() -> None:
    crossed = [(0, 0), (1, 1), (0, 1), (1, 0), (0, 0), (1, 1)]
    text = sentence(document(pairs(SHIFTED, starts=crossed)))
    assert text.startswith("Between these server instances ")
    assert "3 starts of each arm are the fewest" in text


@pytest.mark.parametrize(
    ("outcome", "word"),
    [("unfinished", "Inconclusive"), ("not comparable", "Not comparable"), ("invalid", "Invalid")],
)
def test_what_is_not_concluded_gives_its_reasons_and_no_effect(outcome: str, word: str) -> None:
    assert sentence(document(pairs(SHIFTED), outcome=outcome, reasons=["first", "second"])) == f"{word}: first; second."
    assert sentence(document([], outcome=outcome)) == f"{word}: it has not ended yet."


def test_a_slower_arm_is_higher() -> None:
    assert "5.1 % higher than that of A" in sentence(document(pairs([0.05 + value for value in NOISE])))


def test_a_closed_loop_is_named_so() -> None:
    assert load_text(document(pairs(NOISE), rate_rps=None, concurrency=16)) == "16 in flight (closed loop)"


def test_an_arm_is_told_with_what_was_changed() -> None:
    made = document(pairs(NOISE), b=arm_row("tuned", ["env.X=1", "max_num_seqs=8"]))
    assert arm_text(made, "A") == "A"
    assert arm_text(made, "B") == "tuned (env.X=1, max_num_seqs=8)"


def test_the_table_has_a_line_per_metric_in_columns() -> None:
    lines = table_lines(document(pairs(SHIFTED)))
    assert len(lines) == 8
    assert lines[0].split() == ["metric", "A", "B", "effect", "95", "%", "interval", "finding"]
    assert lines[1].startswith("mean TPOT  ")
    assert lines[1].endswith("between these instances only")
    assert {line.index("between") for line in lines[1:] if "between" in line} == {lines[0].index("finding")}


def test_a_pair_tells_its_order_and_how_it_stands() -> None:
    row = PairRow(number=2, a_first=False, a=block_row(tpot_mean_s=0.030), b=block_row(tpot_mean_s=0.027, n=599))
    line = pair_line(row, ("default", "tuned"), Estimate(-0.1, None, 0))
    assert line.startswith("pair  3 (tuned default)  mean TPOT default 30.00 ms, tuned 27.00 ms: -10.0 %")
    assert "n 600 and 599" in line
    assert line.endswith("so far -9.5 %, no interval yet")
    bare = PairRow(number=0, a_first=True, a=block_row(tpot_mean_s=None), b=block_row())
    assert ": not measured" in pair_line(bare, ("A", "B"), None)
    assert estimate_text(Estimate(0.0, 0.01, 5)) == "0.0 % (-2.5 % to +2.6 %)"


def test_what_could_have_been_seen_and_what_more_would_take() -> None:
    lines = outlook_lines(document(pairs(NOISE)))
    assert lines[0].startswith("smallest effect on mean TPOT that such a comparison finds in 80 % of all runs: ")
    assert lines[1].startswith("to find 1.0 % between the servers that ran: ")
    assert lines[1].endswith(" minutes of load")
    assert len(lines) == 2


def test_single_starts_are_told_that_their_offset_is_not_known() -> None:
    lines = outlook_lines(document(pairs(SHIFTED)))
    assert "starts needed to call it real: 3 of each arm at least" in lines[-1]
    assert "--instances 3" in lines[-1]
    assert "--instances" not in outlook_lines(document(pairs(SHIFTED), placement="attached"))[-1]


def test_a_known_offset_tells_how_many_starts_a_claim_would_need() -> None:
    lines = outlook_lines(document(pairs(SHIFTED), known_offset_sd=0.01, starts_needed=5))
    assert lines[-2] == "offset of one server start, as given: sd 1.0 % of mean TPOT"
    assert lines[-1] == "starts needed to call an effect of this size real: 5 of each arm"
    nothing = outlook_lines(document(pairs(NOISE), known_offset_sd=0.01, starts_needed=25))
    assert nothing[-1] == "starts needed to call an effect of 1.0 % real: 25 of each arm"
    assert "more than 100" in outlook_lines(document(pairs(SHIFTED), known_offset_sd=0.05, starts_needed=None))[-1]


def test_only_trends_beyond_chance_are_told() -> None:
    rows = [
        TrendRow(arm="B", what="requests in flight", share=0.3, interval=(0.2, 0.4), is_told=True),
        TrendRow(arm="A", what="requests in flight", share=0.1, interval=(-0.2, 0.4), is_told=False),
    ]
    assert trend_lines(document(pairs(NOISE), trends=rows)) == [
        "inside the blocks of B requests in flight changed by +30.0 % from start to end (+20.0 % to +40.0 %)"
    ]


def test_no_sentence_calls_anything_real_without_three_starts() -> None:
    for ratios in (NOISE, SHIFTED, [0.2] * 6):
        for offset in (None, 0.001, 0.1):
            made = document(pairs(ratios), known_offset_sd=offset)
            assert made.primary.claim is not Claim.REAL
            assert "Real" not in sentence(made)


def test_an_effect_beyond_its_control_says_what_the_control_differs_by() -> None:
    starts = [(number // 2 % 2, 0) for number in range(8)]
    made = document(pairs([-0.05, *SHIFTED, -0.049], starts=starts))
    assert "beyond what a second start of A differs by (" in sentence(made)
    assert outlook_lines(made)[0].startswith("control, the second start of A against its first: mean TPOT ")
    assert not any(line.startswith("control") for line in outlook_lines(document(pairs(SHIFTED))))
