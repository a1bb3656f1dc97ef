import json
from typing import Any

import pytest

from slo_bench.simulate.wire import Asked, Frames, RefusalError, read_chat, read_completion

LIMIT = 100


def chat(**fields: Any) -> Asked:
    body = {"messages": [{"role": "user", "content": "one two  three"}], **fields}
    return read_chat(json.dumps(body).encode(), "m", LIMIT)


def completion(**fields: Any) -> Asked:
    return read_completion(json.dumps({"prompt": "one two", **fields}).encode(), "m", LIMIT)


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("one  two\nthree", 3), ([5, 6, 7, 8], 4), (["one two"], 2), ([[1, 2, 3]], 3)],
)
def test_a_prompt_counts_its_words_or_its_ids(prompt: object, count: int) -> None:
    assert completion(prompt=prompt).input_tokens == count


def test_a_chat_counts_the_words_of_all_its_messages() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello there"}, {"type": "text", "text": "you"}]},
        {"role": "assistant", "content": None},
    ]
    assert chat(messages=messages).input_tokens == 5


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, LIMIT - 3),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": 7, "max_completion_tokens": 8}, 8),
        ({"max_tokens": 9, "min_tokens": 9, "ignore_eos": True}, 9),
    ],
)
def test_a_chat_answers_as_many_tokens_as_it_may(fields: dict[str, Any], tokens: int) -> None:
    assert chat(**fields).output_tokens == tokens


def test_a_completion_without_a_limit_answers_sixteen_tokens() -> None:
    assert completion().output_tokens == 16


def test_continuous_counts_come_only_with_usage() -> None:
    assert not chat(stream=True, stream_options={"continuous_usage_stats": True}).continuous_usage
    asked = chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert (asked.include_usage, asked.continuous_usage) == (True, True)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": 101}, "max_tokens", "max_tokens=101 cannot be greater than max_model_len=100"),
        ({"max_tokens": 98}, "input_tokens", "maximum context length is 100 tokens"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "less than or equal to max_tokens=5, got 6"),
        ({"n": 2}, "n", "n=1"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "when `stream=True`"),
        ({"messages": []}, "prompt", "cannot be empty"),
        ({"messages": 5}, "messages", "valid array"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "url": "x"}]}]}, None, "valid string"),
        ({"messages": [{"role": "user", "content": "word " * 100}]}, "input_tokens", "maximum context length"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_field_that_is_wrong(
    fields: dict[str, Any], param: str | None, words: str
) -> None:
    with pytest.raises(RefusalError) as refusal:
        chat(**fields)
    error = refusal.value.body["error"]
    assert (error["type"], error["code"]) == ("BadRequestError", 400)
    assert words in str(error["message"])
    assert param is None or error["param"] == param


@pytest.mark.parametrize("prompt", [[], ["a", "b"], [[1], [2]]])
def test_only_one_prompt_is_answered(prompt: object) -> None:
    with pytest.raises(RefusalError, match="exactly one prompt"):
        completion(prompt=prompt)


def test_broken_json_and_unknown_models_are_told_apart() -> None:
    with pytest.raises(RefusalError, match="Invalid JSON") as broken:
        read_chat(b'{"messages": [', "m", LIMIT)
    assert broken.value.status == 400
    with pytest.raises(RefusalError, match="The model `other` does not exist") as unknown:
        chat(model="other")
    assert unknown.value.status == 404
    assert unknown.value.body["error"] == {
        "message": "The model `other` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


def frames(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in raw.decode().split("\n\n") if line]


def test_tokens_written_one_by_one_or_together_are_the_same_frames() -> None:
    asked = chat(max_tokens=5, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    writer = Frames(asked, "id", "m", 1)
    together = writer.tokens(0, 5)
    assert b"".join(writer.tokens(sent, 1) for sent in range(5)) == together
    first, *rest = frames(together)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["usage"]["completion_tokens"] == 0
    assert [frame["usage"]["completion_tokens"] for frame in rest] == [1, 2, 3, 4, 5]
    assert [frame["choices"][0]["finish_reason"] for frame in rest] == [None] * 4 + ["length"]


def test_an_answer_has_one_word_per_token_whether_streamed_or_whole() -> None:
    asked = completion(max_tokens=60)
    writer = Frames(asked, "id", "m", 1)
    streamed = "".join(frame["choices"][0]["text"] for frame in frames(writer.tokens(0, 60)))
    assert len(streamed.split()) == 60
    assert writer.whole()["choices"][0]["text"] == streamed
    assert writer.whole()["usage"]["completion_tokens"] == 60
