"""A data set as a workload: its own words after a fresh sentence, lengths as the server counts them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from traffic.chat_dataset import MOST_ANSWER_TOKENS, MOST_ROWS, PER_BYTE, ChatDataset, chat_dataset
from traffic.errors import UsageError
from traffic.prompts import TextKey, TokenRatio
from traffic.schedule import Draw, endless_requests, open_loop

ROWS = [{"question": f"Question {index}? " * (index + 1), "answer": "word " * (index + 1)} for index in range(40)]


def made(folder: Path, rows: list[dict[str, object]] | None = None, **more: object) -> ChatDataset:
    path = folder / "talk.v1.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (ROWS if rows is None else rows)))
    return chat_dataset(str(path), **more)  # type: ignore[arg-type]


def key(rate_rps: float = 8.0, **more: int) -> TextKey:
    return TextKey(0, 0, rate_rps, 0, **more)


def test_it_says_what_it_is(tmp_path: Path) -> None:
    workload = made(tmp_path)
    assert workload.name == "talk.v1"
    assert workload.source.startswith(f"40 of 40 rows of {tmp_path}/talk.v1.jsonl (content ")
    assert workload.source.endswith("each prompt after a fresh first sentence")
    changed = [{**ROWS[0], "answer": "another"}, *ROWS[1:]]
    assert made(tmp_path, changed).source != workload.source


def test_all_rates_and_arms_see_the_same_rows_and_repeats_see_others(tmp_path: Path) -> None:
    workload = made(tmp_path)
    few, many = workload.draw(3, 0, 10), workload.draw(3, 0, 30)
    assert few.rows is not None
    assert many.rows is not None
    assert few.rows.tolist() == many.rows[:10].tolist()
    assert few.input_tokens.tolist() == many.input_tokens[:10].tolist()
    other = workload.draw(3, 1, 30).rows
    assert other is not None
    assert other.tolist() != many.rows.tolist()


def test_every_row_is_sent_before_one_comes_again(tmp_path: Path) -> None:
    rows = made(tmp_path).draw(0, 0, 100).rows
    assert rows is not None
    assert sorted(rows[:40].tolist()) == list(range(40))
    assert sorted(rows[40:80].tolist()) == list(range(40, 80))
    assert len(set(rows.tolist())) == 100


def test_no_prompt_is_sent_twice_though_rows_are_and_their_words_stay(tmp_path: Path) -> None:  # R17
    workload = made(tmp_path)
    lengths = workload.draw(0, 0, 100)
    texts = [
        text
        for which in (key(), key(10.0), key(attempt=1))
        for text in workload.texts(lengths, workload.prompt_ratio, which)
    ]
    beginnings = {" ".join(messages[0].text.split()[:16]) for messages in texts}
    assert len(beginnings) == len(texts) == 300
    assert lengths.rows is not None
    for (message,), place in zip(texts, lengths.rows.tolist(), strict=False):
        opening, _, own = message.text.partition("\n\n")
        assert opening.endswith(".")
        assert own == ROWS[place % 40]["question"]


def test_a_history_keeps_its_turns_after_a_system_message_that_is_fresh_too(tmp_path: Path) -> None:
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "More?"), ("assistant", "No.")]
    workload = made(tmp_path, [{"messages": [{"role": role, "content": text} for role, text in turns]}])
    lengths = workload.draw(0, 0, 2)
    first, second = workload.texts(lengths, workload.prompt_ratio, key())
    assert [(each.role, each.text) for each in first[1:]] == turns[1:4]
    assert first[0].role == "system"
    assert first[0].text.endswith("\n\nBe brief.")
    assert first[0] != second[0]
    assert [workload.kinds[kind] for kind in lengths.kinds] == ["several turns"] * 2


def test_lengths_follow_what_the_server_counts_and_answers_are_the_rows_own(tmp_path: Path) -> None:
    workload = made(tmp_path).measured(TokenRatio(tokens_per_word=0.2, overhead_tokens=10.0))
    lengths = workload.draw(0, 0, 200)
    texts = workload.texts(lengths, workload.prompt_ratio, key())
    sizes = np.array([workload.prompt_size(messages) for messages in texts])
    assert float(lengths.input_tokens.sum()) == pytest.approx(float((10 + 0.2 * sizes).sum()), rel=0.01)
    assert lengths.rows is not None
    assert lengths.output_tokens[0] == round(0.2 * len("word " * (int(lengths.rows[0]) % 40 + 1)))
    again = workload.recounted(TokenRatio(tokens_per_word=0.4))
    assert again.max_input_tokens > workload.max_input_tokens
    assert again.draw(0, 0, 200).output_tokens.tolist() == lengths.output_tokens.tolist()


def test_answers_can_have_one_length_and_are_never_longer_than_the_mixs(tmp_path: Path) -> None:
    assert set(made(tmp_path, output_tokens=64).draw(0, 0, 50).output_tokens.tolist()) == {64}
    long = made(tmp_path, [{"question": "Why?", "answer": "word " * 9000}])
    assert long.max_output_tokens == MOST_ANSWER_TOKENS


def test_a_tokenizer_counts_in_place_of_bytes(tmp_path: Path) -> None:
    workload = made(tmp_path, tokenizer=lambda text: len(text.split()))
    lengths = workload.draw(0, 0, 40)
    assert lengths.rows is not None
    longest = int(np.argmax(lengths.rows))
    assert 2 * 40 + 13 <= lengths.input_tokens[longest] <= 2 * 40 + 15
    assert lengths.output_tokens[longest] == 40


def test_rows_that_cannot_be_asked_are_left_out_and_counted(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [*ROWS, {"question": " ", "answer": "x"}, {"question": "Why?", "answer": ""}]
    workload = made(tmp_path, rows, longest_prompt_tokens=100)
    assert workload.max_input_tokens <= 100
    left_out = 42 - len(workload.rows)
    assert f"{left_out - 2:,} left out: longer than 100 tokens" in workload.source
    assert "1 left out: without a user's turn" in workload.source
    assert "1 left out: without an answer, whose length --output-tokens would give" in workload.source
    assert len(made(tmp_path, rows, output_tokens=5).rows) == 41


def test_the_limit_that_it_names_leaves_out_what_the_server_counts_as_too_long(tmp_path: Path) -> None:
    counted = TokenRatio(tokens_per_word=0.5, overhead_tokens=20.0)
    workload = made(tmp_path).measured(counted)
    limit = workload.limit_for(200)
    assert made(tmp_path, longest_prompt_tokens=limit).measured(counted).max_input_tokens <= 200
    assert limit < 200 * PER_BYTE.tokens_per_word / counted.tokens_per_word
    assert workload.limit_for(-5) == 0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"question": "Why?", "answer": "x"}, {"text": "a document"}], "row 2: no messages"),
        ([{"question": "Why?"}], r"no row can be asked \(1 left out: without an answer"),
        ([], r"no row can be asked \(it is empty\)"),
    ],
)
def test_a_set_that_is_no_chat_is_refused_with_its_row(
    rows: list[dict[str, object]], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        made(tmp_path, rows)


def test_of_a_large_set_so_many_rows_are_taken_at_random(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": f"n{index}"} for index in range(MOST_ROWS + 500)]
    workload = made(tmp_path, rows, output_tokens=1)
    assert len(workload.rows) == MOST_ROWS
    assert {f"n{index}" for index in range(MOST_ROWS)} != {row.messages[0].text for row in workload.rows}


def test_prompts_cannot_be_scaled(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--length-scale cannot scale prompts of --dataset"):
        made(tmp_path).draw(0, 0, 5, 0.5)


def test_rows_needed_stand_beside_rows_there(tmp_path: Path) -> None:
    workload = made(tmp_path)
    assert "needs up to 41 rows and talk.v1 has 40: rows come again within it" in workload.needed(41)
    assert "needs up to 40 rows and talk.v1 has 40: none comes again within it" in workload.needed(40)


def test_it_fills_schedules_and_closed_loops(tmp_path: Path) -> None:
    draw = Draw(made(tmp_path), 0, 0)
    plan = open_loop(draw, rate_rps=20.0, ramp_s=1.0, duration_s=4.0, drain_limit_s=lambda _: 1.0, text=TokenRatio())
    assert plan.window.duplicate_prompts == 0
    assert plan.window.shared_share == 0.0
    assert {each.kind for each in plan.requests} == {"one turn"}
    make = endless_requests(draw, TokenRatio())
    assert len({make(index).messages for index in range(100)}) == 100
