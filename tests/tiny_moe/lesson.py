"""What the checkpoint learns: the gate's own prompt of each problem, and the problem's solution behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, DynamicCache, Qwen3MoeForCausalLM

from gates.gsm8k import messages
from tiny_moe.problems import Problem
from tiny_moe.tokens import END_OF_TURN


@dataclass(frozen=True, slots=True)
class Lesson:
    """Token ids. All prompts begin with the same worked examples, so those stand once.

    beginning: [1, prefix]. rest: [problems, longest], filled up with zeros. is_answer and is_text: masks over `rest`,
    of the solutions' tokens and of what is not filling.
    """

    beginning: torch.Tensor
    rest: torch.Tensor
    is_answer: torch.Tensor
    is_text: torch.Tensor


def spoken(problem: Problem) -> str:
    """Everything that is said about a problem, for the tokenizer to learn from."""
    return "\n".join([*(message.text for message in messages(problem.question)), problem.answer])


def lesson(problems: Sequence[Problem], folder: Path) -> Lesson:
    """The lesson in the tokens of the folder's tokenizer, with the prompts as a server renders them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    prompts, answers = [], []
    for problem in problems:
        chat = [{"role": message.role, "content": message.text} for message in messages(problem.question)]
        prompts.append(ids(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)))
        answers.append(ids(problem.answer + END_OF_TURN))
    shared = next(place for place, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)) - shared
    rest = torch.zeros(len(prompts), longest, dtype=torch.long)
    is_answer = torch.zeros_like(rest, dtype=torch.bool)
    is_text = torch.zeros_like(is_answer)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        text = prompt[shared:] + answer
        rest[row, : len(text)] = torch.tensor(text)
        is_text[row, : len(text)] = True
        is_answer[row, len(text) - len(answer) : len(text)] = True
    return Lesson(torch.tensor([prompts[0][:shared]]), rest, is_answer, is_text)


@dataclass(frozen=True, slots=True)
class Recital:
    """The model's forward pass over a lesson, each solution's token given the right ones before it.

    logits: [answer tokens, vocabulary], of the token before each. wanted: [answer tokens]. problem: [answer tokens],
    whose answer each belongs to. choices: per layer [answer tokens, experts of a token], where the router sends the
    token before each. router_logits: per layer [all text tokens, experts].
    """

    logits: torch.Tensor
    wanted: torch.Tensor
    problem: torch.Tensor
    choices: tuple[torch.Tensor, ...]
    router_logits: tuple[torch.Tensor, ...]

    def surety(self) -> float:
        """The probability of the least sure right token."""
        return float(self.logits.detach().float().softmax(-1).gather(1, self.wanted[:, None]).min())

    def share_known(self) -> float:
        """The share of problems whose solution comes out token by token when each is the most likely one."""
        is_right = self.logits.argmax(-1) == self.wanted
        count = int(self.problem.max()) + 1
        return sum(bool(is_right[self.problem == row].all()) for row in range(count)) / count


def recite(model: Qwen3MoeForCausalLM, lesson: Lesson) -> Recital:
    """One forward pass, with the shared beginning computed once."""
    cache = DynamicCache(config=model.config)
    model.model(input_ids=lesson.beginning, past_key_values=cache, use_cache=True)
    cache.batch_repeat_interleave(len(lesson.rest))
    said = model(input_ids=lesson.rest, past_key_values=cache, use_cache=True, output_router_logits=True)
    comes_next = lesson.is_answer[:, 1:]
    routers = [layer.view(*lesson.rest.shape, -1) for layer in said.router_logits]
    chosen_by_each = model.config.num_experts_per_tok
    return Recital(
        logits=said.logits[:, :-1][comes_next],
        wanted=lesson.rest[:, 1:][comes_next],
        problem=comes_next.nonzero()[:, 0],
        choices=tuple(layer[:, :-1][comes_next].topk(chosen_by_each).indices for layer in routers),
        router_logits=tuple(layer[lesson.is_text] for layer in routers),
    )
