"""What the simulated server reads and writes: OpenAI's bodies in the shapes of vLLM. One word is one token."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

WORDS = (
    "the river runs past an old mill and under two stone bridges before it meets the sea where small boats wait for "
    "wind while people on the shore mend nets talk about weather and count what the morning brought home"
).split()
"""Answers are these words over and over: plain, and one token each."""

COMPLETIONS_DEFAULT_TOKENS = 16
_VOCABULARY = 151_936

B = TypeVar("B", bound=BaseModel)


class RefusalError(Exception):
    """A request is answered with an error, in vLLM's shape."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class StreamOptions(BaseModel):
    """What a stream tells beside its text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(BaseModel):
    """The fields that both kinds of completion share. Others are ignored, as vLLM does."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1


class Part(BaseModel):
    """A piece of a message; only text is understood."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of a chat."""

    role: str
    content: str | list[Part] | None = None


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None


class CompletionBody(Body):
    """POST /v1/completions; token ids count as their number."""

    prompt: str | list[int] | list[str] | list[list[int]]


class TokenizeBody(BaseModel):
    """POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be served: its lengths in tokens, and the form of the answer."""

    is_chat: bool
    input_tokens: int
    output_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool


def read(kind: type[B], raw: bytes) -> B:
    """Parse a body; RefusalError when it is not JSON or not the right shape."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise RefusalError(f"{where}: {first['msg']}" if where else first["msg"], param=where or None) from None


def read_chat(raw: bytes, model_id: str, max_model_len: int) -> Asked:
    """A chat completion as asked; without a limit the answer fills the context, as at vLLM when nothing stops it."""
    body = read(ChatBody, raw)
    check_model(body.model, model_id)
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _asked(body, True, len(chat_words(body.messages)), wanted, max_model_len)


def read_completion(raw: bytes, model_id: str, max_model_len: int) -> Asked:
    """A text completion as asked; without a limit the answer has OpenAI's 16 tokens."""
    body = read(CompletionBody, raw)
    check_model(body.model, model_id)
    prompts: list[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    if prompts and isinstance(prompts[0], int):
        prompts = [prompts]  # the token ids of one prompt
    if len(prompts) != 1:
        raise RefusalError("the simulated engine answers exactly one prompt per request", param="prompt")
    count = len(prompts[0].split() if isinstance(prompts[0], str) else prompts[0])
    wanted = COMPLETIONS_DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    return _asked(body, False, count, wanted, max_model_len)


def check_model(asked: str | None, model_id: str) -> None:
    """RefusalError 404 for a model that is not here; no name means the one that is."""
    if asked is not None and asked != model_id:
        raise RefusalError(f"The model `{asked}` does not exist.", status=404, kind="NotFoundError", param="model")


def chat_words(messages: Sequence[ChatMessage]) -> list[str]:
    """All words of a chat; there is no template around them."""
    texts = [
        message.content if isinstance(message.content, str) else " ".join(part.text for part in message.content or ())
        for message in messages
    ]
    return " ".join(texts).split()


def _asked(body: Body, is_chat: bool, input_tokens: int, wanted: int | None, max_model_len: int) -> Asked:
    output_tokens = max_model_len - input_tokens if wanted is None else wanted
    if body.n != 1:
        raise RefusalError("the simulated engine gives one answer per request (n=1)", param="n")
    if body.stream_options is not None and not body.stream:
        raise RefusalError("Stream options can only be defined when `stream=True`.", param="stream_options")
    if input_tokens < 1:
        raise RefusalError("The decoder prompt cannot be empty", param="prompt")
    if wanted is not None and wanted < 1:
        raise RefusalError(f"max_tokens must be at least 1, got {wanted}.", param="max_tokens")
    if wanted is not None and wanted > max_model_len:
        raise RefusalError(
            f"max_tokens={wanted} cannot be greater than max_model_len={max_model_len}. Please request fewer output "
            f"tokens. (parameter=max_tokens, value={wanted})",
            param="max_tokens",
        )
    if input_tokens + max(1, output_tokens) > max_model_len:
        raise RefusalError(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{max(1, output_tokens)} output tokens and your prompt contains {input_tokens} input tokens, for a total "
            f"of {input_tokens + max(1, output_tokens)} tokens. Please reduce the length of the input prompt or the "
            "number of requested output tokens.",
            param="input_tokens",
        )
    if body.min_tokens > output_tokens:
        raise RefusalError(
            f"min_tokens must be less than or equal to max_tokens={output_tokens}, got {body.min_tokens}.",
            param="min_tokens",
        )
    options = body.stream_options or StreamOptions()
    return Asked(
        is_chat=is_chat,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        stream=body.stream,
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
    )


def token_id(word: str) -> int:
    """A stable id for a word; different words may share one."""
    return zlib.crc32(word.encode()) % _VOCABULARY


class Frames:
    """Writes one answer. What does not change from token to token is encoded once."""

    def __init__(self, asked: Asked, answer_id: str, model_id: str, created_s: int) -> None:
        self._asked = asked
        self._about: dict[str, Any] = {
            "id": answer_id,
            "object": "chat.completion.chunk" if asked.is_chat else "text_completion",
            "created": created_s,
            "model": model_id,
        }
        about = json.dumps(self._about, separators=(",", ":"))[:-1]
        self._head = f'data: {about},"choices":[{{"index":0,' + (
            '"delta":{"content":"' if asked.is_chat else '"text":"'
        )
        self._close = '"}' if asked.is_chat else '"'
        self._middle = f'{self._close},"logprobs":null,"finish_reason":null}}]'
        self._last = f'{self._close},"logprobs":null,"finish_reason":"length","stop_reason":null}}]'

    def tokens(self, sent: int, count: int) -> bytes:
        """The frames of the next `count` tokens after `sent`; a chat's role comes with the first."""
        frames = [self._role()] if sent == 0 and self._asked.is_chat else []
        for number in range(sent + 1, sent + count + 1):
            space = " " if number > 1 else ""
            after = self._last if number == self._asked.output_tokens else self._middle
            frames.append(f"{self._head}{space}{WORDS[(number - 1) % len(WORDS)]}{after}{self._usage_tail(number)}")
        return "".join(frames).encode()

    def usage(self) -> bytes:
        """The frame that closes a stream with include_usage."""
        return _frame({**self._about, "choices": [], "usage": self._usage(), "system_fingerprint": "simulated"})

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        asked = self._asked
        text = " ".join(WORDS[number % len(WORDS)] for number in range(asked.output_tokens))
        content = {"message": {"role": "assistant", "content": text}} if asked.is_chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": "length", "stop_reason": None}
        kind = "chat.completion" if asked.is_chat else "text_completion"
        tail = {"system_fingerprint": "simulated", "usage": self._usage()}
        return {**self._about, "object": kind, "choices": [choice], **tail}

    def _role(self) -> str:
        choice = (
            '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        )
        about = json.dumps(self._about, separators=(",", ":"))[:-1]
        return f"data: {about},{choice}{self._usage_tail(0)}"

    def _usage_tail(self, completion_tokens: int) -> str:
        if not self._asked.continuous_usage:
            return "}\n\n"
        prompt = self._asked.input_tokens
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + completion_tokens},'
            f'"completion_tokens":{completion_tokens}}}}}\n\n'
        )

    def _usage(self) -> dict[str, Any]:
        asked = self._asked
        return {
            "prompt_tokens": asked.input_tokens,
            "total_tokens": asked.input_tokens + asked.output_tokens,
            "completion_tokens": asked.output_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


def error_frame(message: str) -> bytes:
    """An error in the middle of a stream, whose status is 200 already."""
    return _frame({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})


def _frame(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


DONE = b"data: [DONE]\n\n"
