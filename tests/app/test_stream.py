"""Streams, byte for byte: what OpenAI's clients read, in every way a stream can end."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocol.errors import UnavailableError
from protocol.messages import FinishReason
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.asgi import Exchange, http_scope

HEAD = '"created":1800000000,"model":"owner/dummy","system_fingerprint":"trillm-1.2.3"'


def chunks(text: str) -> list[dict[str, Any]]:
    events = text.split("\n\n")
    assert events.pop() == ""
    assert events[-1] == "data: [DONE]"
    assert events.count("data: [DONE]") == 1
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def open_stream(under_test: AppUnderTest, path: str, **body: Any) -> Exchange:
    headers = [(b"content-type", b"application/json")]
    return Exchange(http_scope("POST", path, headers), json.dumps({"stream": True, **body}).encode())


async def test_a_chat_stream_is_exactly_this() -> None:
    response = await make_app().chat(max_tokens=2, stream=True)
    text = response.text
    head = f'"id":"{chunks(text)[0]["id"]}","object":"chat.completion.chunk",{HEAD}'
    assert text == (
        f'data: {{{head},"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},'
        f'"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {{{head},"choices":[{{"index":0,"delta":{{"content":" Over"}},'
        f'"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {{{head},"choices":[{{"index":0,"delta":{{"content":" the"}},'
        f'"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {{{head},"choices":[{{"index":0,"delta":{{}},'
        f'"logprobs":null,"finish_reason":"length","stop_reason":null}}]}}\n\n'
        "data: [DONE]\n\n"
    )
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"


async def test_a_completion_stream_is_exactly_this() -> None:
    text = (await make_app().complete(max_tokens=2, stream=True)).text
    head = f'"id":"{chunks(text)[0]["id"]}","object":"text_completion",{HEAD}'
    assert text == (
        f'data: {{{head},"choices":[{{"index":0,"text":" Over","logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {{{head},"choices":[{{"index":0,"text":" the","logprobs":null,"finish_reason":"length",'
        f'"stop_reason":null}}]}}\n\n'
        "data: [DONE]\n\n"
    )


async def test_every_choice_has_its_role_first_and_its_finish_reason_last_and_once() -> None:
    found = chunks((await make_app().chat(n=3, max_tokens=4, stream=True)).text)
    for index in range(3):
        own = [chunk["choices"][0] for chunk in found if chunk["choices"][0]["index"] == index]
        assert [choice["delta"].get("role") for choice in own] == ["assistant", None, None, None, None, None]
        assert [choice["finish_reason"] for choice in own] == [None] * 5 + ["length"]
    assert len({chunk["id"] for chunk in found}) == 1


@pytest.mark.parametrize("kind", ["chat", "complete"])
async def test_usage_comes_once_at_the_end_and_only_if_asked_for(kind: str) -> None:
    under_test = make_app()
    ask = under_test.chat if kind == "chat" else under_test.complete
    fields = {"max_tokens": 3, "stream": True}
    plain = (await ask(max_tokens=3)).json["usage"]
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        found = chunks((await ask(stream_options=options, **fields)).text)
        assert all("usage" not in chunk and chunk["choices"] for chunk in found)
    found = chunks((await ask(stream_options={"include_usage": True}, **fields)).text)
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == plain
    assert all(chunk["usage"] is None for chunk in found[:-1])
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = chunks((await ask(stream_options=options, **fields)).text)
    assert [chunk["usage"]["completion_tokens"] for chunk in found][-3:] == ([3, 3, 3] if kind == "chat" else [2, 3, 3])


@pytest.mark.parametrize("tokens_per_delta", [1, 3, 100])
@pytest.mark.parametrize("stop", [None, "mist"])
@pytest.mark.parametrize("text", [" a mist, Für die 船 🧊 boats", "naïve 😀"])
async def test_the_stream_joins_to_the_plain_answer(tokens_per_delta: int, stop: str | None, text: str) -> None:
    under_test = make_app(tokens_per_delta=tokens_per_delta, reply=lambda prompt, index: text)
    plain = (await under_test.chat(stop=stop)).json["choices"][0]
    found = [chunk["choices"][0] for chunk in chunks((await under_test.chat(stop=stop, stream=True)).text)]
    assert "".join(choice["delta"].get("content", "") for choice in found) == plain["message"]["content"]
    assert found[-1]["finish_reason"] == plain["finish_reason"]
    assert found[-1]["stop_reason"] == plain["stop_reason"]


async def test_events_that_piled_up_go_out_as_one_write() -> None:
    under_test = make_app()
    exchange = open_stream(under_test, "/v1/completions", prompt=["a", "b", "c"], max_tokens=1)
    await exchange.run(under_test.app)
    bodies = [message["body"] for message in exchange.sent[1:] if message["body"]]
    assert len(bodies) == 1
    assert bodies[0].count(b"data: ") == 4


async def test_a_refusal_before_the_first_token_is_a_status_and_no_stream() -> None:
    under_test = make_app(refusal=UnavailableError("The queue is full"))
    for ask in (under_test.chat, under_test.complete):
        response = await ask(stream=True)
        assert response.status_code == 503
        assert response.headers["Retry-After"] == "1"
        assert response.json["error"]["message"] == "The queue is full"


async def test_the_headers_go_out_before_the_first_token() -> None:
    under_test = make_app()
    under_test.engine.hold()
    exchange = open_stream(under_test, "/v1/completions", prompt="a", max_tokens=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, under_test.app)
        await wait_all_tasks_blocked()
        assert exchange.sent[0]["status"] == 200
        assert exchange.data == b""
        under_test.engine.let()
    assert exchange.data.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("kind", ["chat", "complete"])
async def test_a_death_in_mid_stream_is_told_in_the_stream(kind: str) -> None:
    under_test = make_app(dies_after=2)
    ask = under_test.chat if kind == "chat" else under_test.complete
    found = chunks((await ask(stream=True)).text)
    assert found[-1] == {
        "error": {"message": "The engine died", "type": "InternalServerError", "param": None, "code": "engine_dead"}
    }
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in found[:-1])


async def test_a_request_that_fails_alone_is_told_and_its_siblings_are_aborted() -> None:
    under_test = make_app(fails_after={1: 2})
    found = chunks((await under_test.complete(n=2, stream=True)).text)
    assert found[-1]["error"]["message"] == "The grammar went wrong"
    assert under_test.engine.num_aborted == 1


@pytest.mark.parametrize("kind", ["chat", "complete"])
async def test_tokens_that_came_together_with_a_failure_are_told_before_it(kind: str) -> None:
    def texts(reply: Any) -> list[str]:
        choices = [choice for chunk in chunks(reply.text) for choice in chunk.get("choices", [])]
        assert all("error" not in chunk for chunk in chunks(reply.text)[:-1])
        return ["".join(told(c) for c in choices if c["index"] == index) for index in range(2)]

    def told(choice: dict[str, Any]) -> str:
        return choice["text"] if "text" in choice else choice["delta"].get("content", "")

    fields = {"n": 2, "stream": True}
    of_three = make_app(tokens_per_delta=3)
    whole = texts(await (of_three.chat if kind == "chat" else of_three.complete)(max_tokens=6, **fields))
    failing = make_app(tokens_per_delta=3, fails_after={1: 6})
    reply = await (failing.chat if kind == "chat" else failing.complete)(**fields)
    assert texts(reply) == whole
    assert chunks(reply.text)[-1]["error"]["message"] == "The grammar went wrong"
    assert '"finish_reason":"' not in reply.text


async def test_a_stream_that_the_server_ends_is_told_so_and_may_be_tried_again() -> None:
    under_test = make_app(fails_after={0: 2}, failure=FinishReason.ABORT)
    found = chunks((await under_test.chat(stream=True)).text)
    assert found[-1]["error"]["type"] == "service_unavailable_error"
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in found[:-1])
    assert (await under_test.chat()).status_code == 503


async def test_a_surprise_in_mid_stream_is_told_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    def surprise(prompt: Any, index: int) -> str:
        return " a b c"

    under_test = make_app(reply=surprise)
    original = under_test.engine.tokenizer.decode
    calls = []

    def decode(ids: list[int], **kwargs: Any) -> str:
        calls.append(ids)
        if len(calls) == 3:
            raise RuntimeError("secret path /etc/x")
        return original(ids, **kwargs)

    under_test.engine.tokenizer.decode = decode  # type: ignore[method-assign]
    found = chunks((await under_test.complete(stream=True)).text)
    assert found[-1]["error"]["code"] == "internal"
    assert "secret" not in json.dumps(found)
    assert sum("secret" in (record.exc_text or "") for record in caplog.records) == 1


async def test_chat_logprobs_are_streamed_one_entry_per_token() -> None:
    under_test = make_app(reply=lambda prompt, index: " a 🧊 b")
    plain = (await under_test.chat(logprobs=True, top_logprobs=3)).json["choices"][0]
    found = chunks((await under_test.chat(logprobs=True, top_logprobs=3, stream=True)).text)
    streamed = [entry for chunk in found for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == plain["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in streamed)
    assert streamed[0]["top_logprobs"][2]["logprob"] == -9999.0
