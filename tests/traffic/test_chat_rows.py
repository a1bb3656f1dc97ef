"""A row of a chat data set, whatever its fields are called."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.chat_rows import ChatRow, NoChatError, chat_row
from traffic.records import Message

ASK, ANSWER = "How far is the moon?", "About 384,000 km."
ONE = ChatRow((Message("user", ASK),), ANSWER)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": ASK}, {"role": "assistant", "content": ANSWER}]},
        {"conversations": [{"from": "human", "value": ASK}, {"from": "gpt", "value": ANSWER}], "id": "x_0"},
        {"prompt": ASK, "response": ANSWER},
        {"prompt": ASK, "completion": ANSWER},
        {"question": ASK, "answer": ANSWER, "difficulty": 3},
        {"instruction": ASK, "input": "", "output": ANSWER},
        {"prompt": [{"role": "user", "content": ASK}], "response": ANSWER},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": ASK}]},
                {"role": "assistant", "content": ANSWER},
            ]
        },
        {"messages": None, "prompt": ASK, "response": ANSWER},
    ],
)
def test_every_known_form_of_one_question_is_the_same_row(fields: dict[str, Any]) -> None:
    assert chat_row(fields) == ONE


def test_an_instruction_comes_with_its_input() -> None:
    row = chat_row({"instruction": "Translate.", "input": "Guten Tag", "output": "Good day"})
    assert row == ChatRow((Message("user", "Translate.\n\nGuten Tag"),), "Good day")


def test_the_prompt_goes_up_to_the_users_last_turn_with_the_system_before_it() -> None:
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", ASK), ("assistant", ANSWER)]
    row = chat_row({"messages": [{"role": role, "content": text} for role, text in turns]})
    assert row == ChatRow(tuple(Message(role, text) for role, text in turns[:-1]), ANSWER)


def test_a_system_prompt_in_a_field_of_its_own_comes_first() -> None:
    row = chat_row({"system_prompt": "Be brief.", "question": ASK, "response": ANSWER})
    assert row == ChatRow((Message("system", "Be brief."), Message("user", ASK)), ANSWER)
    assert chat_row({"system_prompt": "", "question": ASK, "response": ANSWER}) == ONE


def test_a_row_without_an_answer_has_none() -> None:
    for fields in (
        {"prompt": ASK},
        {"prompt": ASK, "response": " "},
        {"conversations": [{"from": "human", "value": ASK}]},
    ):
        row = chat_row(fields)
        assert row == ChatRow((Message("user", ASK),), None)


@pytest.mark.parametrize(
    "fields",
    [
        {"conversations": [{"from": "gpt", "value": "Sure!"}]},
        {"conversations": []},
        {"prompt": "   "},
        {"messages": [{"role": "tool", "content": "42"}, {"role": "user", "content": ASK}]},
    ],
)
def test_a_row_that_asks_nothing_plain_is_left_out(fields: dict[str, Any]) -> None:
    assert chat_row(fields) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"text": "a document"}, "no messages, conversations, .*; its fields are text"),
        ({}, "its fields are none"),
        ({"prompt": 5}, "prompt is int, neither text nor a list of turns"),
        ({"messages": "hello"}, "messages is str"),
        ({"messages": ["hello"]}, "messages holds a turn that is str, not an object"),
        ({"messages": [{"content": "hello"}]}, "without role and content"),
        ({"conversations": [{"from": "human", "value": 3}]}, "or from and value"),
    ],
)
def test_another_kind_of_row_is_told_by_its_fault(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(NoChatError, match=words):
        chat_row(fields)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "text"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.sampled_from(["messages", "conversations", "prompt", "input", "answer", "system"]), json_values)
)
def test_any_json_is_a_chat_none_or_a_fault_in_words(fields: dict[str, Any]) -> None:
    with suppress(NoChatError):
        row = chat_row(fields)
        assert row is None or row.messages[-1].role == "user"
