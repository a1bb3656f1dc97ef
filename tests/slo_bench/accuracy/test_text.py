"""The text gate's asking: one text at a time in one order, and an honest word where a server gives no logprobs."""

from __future__ import annotations

import pytest
from engines import Scripted, ScriptedHost, answer
from fake_server import Handler, Script, reply
from flights import against
from memory_server import MemoryServer

from reports.text_document import TextDocument
from slo_bench.accuracy.text import batch_invariant, read_texts, text_result, texts_sha256
from slo_bench.accuracy.texts import TEXTS
from slo_bench.engine_options import EngineOptions
from slo_bench.hosts import EngineFacts
from traffic.endpoint import Endpoint
from traffic.errors import EngineError
from traffic.http_engine import HttpEngine
from traffic.virtual_time import run_virtual

FACTS = EngineFacts("vllm", "m", 4096, None)


def place(own: float, rank: int = 1, *, own_id: str = "7", top_id: str = "9") -> dict[str, object]:
    """One place of prompt_logprobs: the text's token and, where that is another one, the likeliest."""
    entry = {own_id: {"logprob": own, "rank": rank, "decoded_token": "x"}}
    return entry if rank == 1 else {top_id: {"logprob": -0.1, "rank": 1, "decoded_token": "y"}, **entry}


def completion(*places: object, tokens: tuple[str, ...] = (" and", " so")) -> dict[str, object]:
    choice = {"text": "".join(tokens), "logprobs": {"tokens": list(tokens)}, "prompt_logprobs": [None, *places]}
    return {"choices": [choice]}


def read_from(handler: Handler, **more: object) -> tuple[TextDocument, MemoryServer]:
    documents: list[TextDocument] = []

    async def use(_: MemoryServer, endpoint: Endpoint) -> None:
        host = ScriptedHost(HttpEngine(endpoint, "m"), FACTS, **more)  # type: ignore[arg-type]
        documents.append(await read_texts(host, label="arm"))

    server = against(handler, use)
    return documents[0], server


def test_every_text_is_read_alone_in_one_order_with_its_continuation() -> None:
    document, server = read_from(lambda _: reply(200, completion(place(-1.5, rank=3), place(-0.2))))
    assert server.connections == 1
    assert [each.json["prompt"] for each in server.received] == list(TEXTS)
    body = server.received[0].json
    assert (body["temperature"], body["prompt_logprobs"], body["max_tokens"]) == (0, 1, 32)
    assert {each.path for each in server.received} == {"/v1/completions"}
    assert (document.not_measured, document.texts_sha256) == (None, texts_sha256())
    assert [row.model_dump() for row in document.texts] == [
        {"logprobs": [-1.5, -0.2], "top": ["9", "7"], "continuation": [" and", " so"]}
    ] * len(TEXTS)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (reply(404, {"detail": "Not Found"}), "the server gives no prompt_logprobs"),
        (reply(400, {"error": {"message": "prompt_logprobs is not supported"}}), "prompt_logprobs is not supported"),
        (reply(200, {"choices": [{"text": "so", "prompt_logprobs": None}]}), "the server gives no prompt_logprobs"),
        (reply(200, ["so"]), "the server gives no prompt_logprobs"),
    ],
)
def test_a_server_without_them_is_not_measured_and_the_reason_is_kept(script: Script, why: str) -> None:
    document, _ = read_from(lambda _: script)
    assert document.not_measured is not None
    assert why in document.not_measured
    assert document.texts == []
    assert document.run() is None


def test_an_engine_in_this_process_is_not_measured() -> None:
    document = run_virtual(read_texts(ScriptedHost(Scripted(answer())), label="arm"))
    assert document.not_measured == "the engine gives no prompt_logprobs"


def test_a_server_that_died_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="engine died"):
        read_from(lambda _: reply(500, {"error": "boom"}), death=EngineError("engine died"))


def test_a_reason_not_to_ask_is_kept_and_nothing_is_sent() -> None:
    engine = Scripted(answer())
    document = run_virtual(read_texts(ScriptedHost(engine), label="arm", why_not="it rounds alike"))
    assert (document.not_measured, engine.received) == ("it rounds alike", [])


@pytest.mark.parametrize(
    ("env", "is_asked"),
    [([], True), (["VLLM_BATCH_INVARIANT=0"], True), (["VLLM_BATCH_INVARIANT=1"], False), (["OTHER=1"], True)],
)
def test_the_batch_invariant_mode_is_not_asked(env: list[str], is_asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    options = EngineOptions(model="m", server_env=env)
    assert (batch_invariant(options) is None) is is_asked
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert (batch_invariant(options) is None) is (env == ["VLLM_BATCH_INVARIANT=0"])
    assert batch_invariant(EngineOptions(base_url="http://x")) is None


def test_nothing_that_is_no_number_becomes_one() -> None:
    for spoiled in ({"7": {"logprob": None, "rank": 1}}, {}, None, {"7": {"logprob": float("nan"), "rank": 1}}):
        with pytest.raises(ValueError, match="no prompt_logprobs"):
            text_result(completion(spoiled))
    found = text_result(completion(place(float("-inf"), rank=50), tokens=()))
    assert (found.logprobs, found.top, found.continuation) == ((-100.0,), ("9",), ())


def test_the_texts_are_long_enough_to_tell_and_all_different() -> None:
    assert len(set(TEXTS)) == len(TEXTS) >= 10
    assert all(250 <= len(text) <= 600 for text in TEXTS)
