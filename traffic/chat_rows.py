"""Rows of chat data sets, whatever they call their fields: a prompt, and the answer that somebody gave to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traffic.records import Message

CONVERSATIONS = ("messages", "conversations", "conversation")
PROMPTS = ("prompt", "question", "instruction")
ANSWERS = ("response", "answer", "output", "completion")
SYSTEMS = ("system", "system_prompt")
ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}


class NoChatError(ValueError):
    """A row is no chat; the message says what it is."""


@dataclass(frozen=True, slots=True)
class ChatRow:
    """The turns up to the last one of the user, and the answer to it; None where the row has none."""

    messages: tuple[Message, ...]
    answer: str | None


def chat_row(fields: Mapping[str, object]) -> ChatRow | None:
    """The row as a chat; None for one that holds nothing to ask, or turns of somebody else than user and assistant.

    Known are `messages` (role, content), ShareGPT's `conversations` (from, value), and one question a row: `prompt`,
    `question` or `instruction` (with `input`) and `response`, `answer`, `output` or `completion`. Raises NoChatError
    for a row of another kind.
    """
    name = next((name for name in (*CONVERSATIONS, *PROMPTS) if fields.get(name) is not None), None)
    if name is None:
        have = ", ".join(map(str, fields)) or "none"
        raise NoChatError(f"no {', '.join((*CONVERSATIONS, *PROMPTS))}; its fields are {have}")
    told = fields[name]
    if isinstance(told, list):
        turns = [_turn(name, each) for each in told]
    elif name in PROMPTS and isinstance(told, str):
        more = fields.get("input") if name == "instruction" else None
        turns = [("user", f"{told}\n\n{more}" if isinstance(more, str) and more.strip() else told)]
    else:
        raise NoChatError(f"{name} is {type(told).__name__}, neither text nor a list of turns")
    system = next((text for key in SYSTEMS if isinstance(text := fields.get(key), str) and text.strip()), None)
    if system is not None and turns and turns[0][0] != "system":
        turns.insert(0, ("system", system))
    given = next((text for key in ANSWERS if isinstance(text := fields.get(key), str)), None)
    return _asked(turns, given if name in PROMPTS else None)


def _asked(turns: list[tuple[str | None, str]], answer: str | None) -> ChatRow | None:
    """The prompt in these turns; answer: where it is no turn."""
    last = max((index for index, (role, text) in enumerate(turns) if role == "user" and text.strip()), default=None)
    if last is None or any(role is None for role, _ in turns[: last + 1]):
        return None
    if answer is None and len(turns) > last + 1 and turns[last + 1][0] == "assistant":
        answer = turns[last + 1][1]
    messages = tuple(Message(role, text) for role, text in turns[: last + 1] if role is not None and text.strip())
    return ChatRow(messages, answer if answer and answer.strip() else None)


def _turn(name: str, turn: object) -> tuple[str | None, str]:
    """Role and text of one turn; None for a role that a plain chat does not have."""
    if not isinstance(turn, Mapping):
        raise NoChatError(f"{name} holds a turn that is {type(turn).__name__}, not an object")
    role = turn.get("role", turn.get("from"))
    text = turn.get("content", turn.get("value"))
    if isinstance(text, list):
        parts = [part.get("text") for part in text if isinstance(part, Mapping)]
        text = "\n".join(part for part in parts if isinstance(part, str))
    if not isinstance(role, str) or not isinstance(text, str | None):
        raise NoChatError(f"{name} holds a turn without role and content, or from and value")
    return ROLES.get(role.lower()), text or ""
