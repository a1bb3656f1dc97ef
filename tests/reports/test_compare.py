from __future__ import annotations

from comparisons import arm_row, block_row, document, pairs

from reports.compare import compare_note
from reports.effect_document import DiscardedRow, EffectDocument
from reports.run_directory import to_json

SHIFTED = [-0.05, -0.053, -0.047, -0.05, -0.049, -0.052]


def test_the_note_has_its_sentence_its_tables_and_what_cannot_be_concluded() -> None:
    text = compare_note(document(pairs(SHIFTED)))
    assert text.startswith("# B against A at 10.00 req/s\n\n**Between these two server instances ")
    for part in (
        "## Effects",
        "| mean TPOT |",
        "| goodput |",
        "Smallest effect on mean TPOT",
        "## What was compared",
        "6 pairs of blocks in the order A B B A",
        "A block is a ramp of 15 s",
        "## In what the servers differ",
        "| `command --kv-cache-dtype` | not said | `fp8` |",
        "## What cannot be concluded",
        "fewer than 3 starts of each arm (1 here)",
        "## Every pair",
        "slo-bench compare --request-rate 10",
    ):
        assert part in text, part
    assert "SIMULATED" not in text


def test_a_simulated_comparison_is_marked_in_title_sentence_and_tables() -> None:
    text = compare_note(document(pairs(SHIFTED), is_simulated=True, a=arm_row("A", engine="simulated")))
    assert text.startswith("# SIMULATED: B against A")
    assert "**SIMULATED: " in text
    assert "## Effects (SIMULATED)" in text
    assert "## Every pair (SIMULATED)" in text
    assert "Anything about a GPU: the engine is SIMULATED." in text


def test_labels_and_changes_cannot_break_the_page() -> None:
    made = document(
        pairs(SHIFTED), b=arm_row("b|*x*", ["vllm_arg=--a|`b`"]), faults=["<script>"], command=["slo-bench", "a b"]
    )
    text = compare_note(made)
    assert "<script>" not in text
    assert "b\\|\\*x\\*" in text
    assert "slo-bench 'a b'" in text
    rows = [line for line in text.splitlines() if line.startswith("| mean TPOT |")]
    assert rows[0].count("|") - rows[0].count("\\|") == 9


def test_servers_of_somebody_else_list_what_nobody_could_check() -> None:
    text = compare_note(document(pairs(SHIFTED), placement="attached", unproven=["which GPU it is"], differences=[]))
    assert "Nobody could check:" in text
    assert "- which GPU it is" in text
    assert "In nothing that they tell of themselves." in text
    assert "belong to somebody else" in text


def test_blocks_that_were_measured_again_are_told_with_the_reason() -> None:
    rows = [
        DiscardedRow(number=1, arm="A", block=block_row(invalid_reasons=["send lag p99 30 ms"])),
        DiscardedRow(number=1, arm="B", block=block_row()),
    ]
    text = compare_note(document(pairs(SHIFTED), discarded=rows))
    assert "- pair 2, A: send lag p99 30 ms" in text
    assert "- pair 2, B: its partner was so" in text


def test_a_comparison_of_nothing_has_a_note() -> None:
    text = compare_note(document([], outcome="not comparable", reasons=["B does not keep up"], ended_utc=None))
    assert "**Not comparable: B does not keep up.**" in text
    assert "not ended yet" in text


def test_a_real_effect_does_not_list_itself_among_what_cannot_be_concluded() -> None:
    nested = [(start, start) for start in range(4) for _ in range(2)]
    text = compare_note(document(pairs([*SHIFTED, -0.05, -0.05], starts=nested)))
    assert "**Real: " in text
    assert "nothing is called real" not in text


def test_the_note_follows_from_the_document_on_disk() -> None:
    made = document(pairs(SHIFTED))
    assert compare_note(EffectDocument.model_validate_json(to_json(made))) == compare_note(made)
