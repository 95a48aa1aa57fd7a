"""Answers where servers are known to go wrong: half characters, full contexts, many choices at once, odd clients."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import tokenizers
import trio
from tokenizers.processors import TemplateProcessing

from app.conversation import Conversation
from app.listening import KEEP_ALIVE_SECONDS
from app.render import ChatTemplate
from app.schemas.chat import Message
from app.tokenizer import Tokenizer
from protocol.messages import FinishReason
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.dummy_checkpoint import dummy_tokenizer
from tests.helpers.loopback import serve_on_loopback

KINDS = ["chat", "completions"]
HI = [{"role": "user", "content": "Hi"}]


def ask(under_test: AppUnderTest, kind: str, **fields: Any) -> Any:
    return (under_test.chat if kind == "chat" else under_test.complete)(**fields)


def strictly(text: str) -> Any:
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def events(text: str) -> list[dict[str, Any]]:
    return [strictly(event.removeprefix("data: ")) for event in text.split("\n\n") if event.startswith("data: {")]


def told(choice: dict[str, Any]) -> str:
    """The text of a choice or of a chunk's."""
    return str(choice["text"] if "text" in choice else choice.get("message", choice.get("delta")).get("content", ""))


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_may_end_in_the_middle_of_a_character(kind: str) -> None:
    under_test = make_app(reply=lambda prompt, index: "😀漢🇩🇪")
    for max_tokens in range(1, 13):
        plain = strictly((await ask(under_test, kind, max_tokens=max_tokens)).text)
        choice = plain["choices"][0]
        assert plain["usage"]["completion_tokens"] == max_tokens
        assert choice["finish_reason"] == "length"
        streamed = events((await ask(under_test, kind, max_tokens=max_tokens, stream=True)).text)
        assert "".join(told(event["choices"][0]) for event in streamed) == told(choice)
        assert "\ufffd" not in told(choice).rstrip("\ufffd")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens_per_delta", [1, 4, 100])
async def test_a_stream_counts_tokens_and_not_events(kind: str, tokens_per_delta: int) -> None:
    under_test = make_app(tokens_per_delta=tokens_per_delta)
    for fields in ({"n": 3, "max_tokens": 9}, {"stop": ["mist"]}, {"max_tokens": 1}):
        plain = (await ask(under_test, kind, **fields)).json["usage"]
        streamed = await ask(under_test, kind, **fields, stream=True, stream_options={"include_usage": True})
        assert events(streamed.text)[-1]["usage"] == plain


@pytest.mark.parametrize("kind", KINDS)
async def test_choices_that_end_in_the_same_step_are_all_told(kind: str) -> None:
    under_test = make_app(tokens_per_delta=100, reply=lambda prompt, index: f" {index}")
    whole = (await ask(under_test, kind, n=8)).json["choices"]
    assert [choice["index"] for choice in whole] == list(range(8))
    assert all(choice["finish_reason"] == "stop" for choice in whole)
    assert [told(choice) for choice in whole] == [f" {index}" for index in range(8)]


async def test_choices_of_many_prompts_are_streamed_under_their_own_index_and_counted_together() -> None:
    under_test = make_app(reply=lambda prompt, index: f" boat {index}")
    fields: dict[str, Any] = {"n": 2, "max_tokens": 20}
    plain = (await under_test.complete(["a", "bb cc", "ddd ee ff"], **fields)).json
    streamed = events(
        (
            await under_test.complete(
                ["a", "bb cc", "ddd ee ff"], **fields, stream=True, stream_options={"include_usage": True}
            )
        ).text
    )
    assert streamed[-1]["usage"] == plain["usage"]
    for index, choice in enumerate(plain["choices"]):
        own = [event["choices"][0] for event in streamed[:-1] if event["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in own) == choice["text"] == f" boat {index}"
        assert own[-1]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize("max_tokens", [1, None])
async def test_a_prompt_one_short_of_the_context_has_one_token_of_answer(max_tokens: int | None) -> None:
    under_test = make_app(max_model_len=64)
    reply = (await under_test.complete([40] * 63, max_tokens=max_tokens)).json
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (1, FinishReason.LENGTH)
    for too_long in (64, 65):
        assert (await under_test.complete([40] * too_long, max_tokens=max_tokens)).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_mask_made_impossible_is_still_json(stream: bool) -> None:
    under_test = make_app()
    for kind, fields in (("completions", {"logprobs": 5}), ("chat", {"logprobs": True, "top_logprobs": 5})):
        reply = await ask(under_test, kind, **fields, max_tokens=3, stream=stream)
        bodies = events(reply.text) if stream else [strictly(reply.text)]
        assert "-9999.0" in json.dumps(bodies)


async def test_the_lists_of_a_streamed_echo_are_equally_long() -> None:
    reply = await make_app().complete(echo=True, logprobs=1, stream=True, max_tokens=3, top_k=1, temperature=1)
    parts = [event["choices"][0]["logprobs"] for event in events(reply.text) if event["choices"][0]["logprobs"]]
    whole = {name: list(itertools.chain(*(part[name] for part in parts))) for name in parts[0]}
    assert len({len(values) for values in whole.values()}) == 1
    assert whole["token_logprobs"][0] is None
    assert all(token in top for token, top in zip(whole["tokens"][1:], whole["top_logprobs"][1:], strict=True))


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": -1}, {"top_p": 0}, {"prompt": [40] * 999}, {"repetition_penalty": 1e30}]
)
async def test_a_wrong_request_may_come_again_and_harms_no_right_one(wrong: dict[str, Any]) -> None:
    under_test = make_app()
    replies = [await under_test.post("/v1/completions", **{"prompt": "Hi"} | wrong) for _ in range(3)]
    assert len({reply.text for reply in replies}) == 1
    assert replies[0].status_code == 400
    assert (await under_test.complete("Hi", max_tokens=1)).status_code == 200


async def test_answers_of_the_same_second_have_ids_of_their_own_and_keep_them() -> None:
    under_test = make_app()
    found = [events((await under_test.chat(max_tokens=4, stream=True)).text) for _ in range(2)]
    heads = [{(event["id"], event["created"], event["model"]) for event in stream} for stream in found]
    assert [len(head) for head in heads] == [1, 1]
    assert heads[0] != heads[1]


def test_a_template_that_writes_the_beginning_leaves_none_to_the_tokeniser() -> None:
    """Two of them make answers worse, and nobody sees why."""

    def adding() -> tokenizers.Tokenizer:
        tokenizer = dummy_tokenizer()
        tokenizer.post_processor = TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))]
        )
        return tokenizer

    tokenizer = Tokenizer(adding(), adding())
    begin = tokenizer.token_id("<|endoftext|>")
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<|endoftext|>"})
    chat = template.encode_sync(Conversation([Message("user", "Hi")]), tokenizer, 64)
    assert chat == [begin, *tokenizer.encode("Hi", add_special_tokens=False)]
    assert tokenizer.encode("Hi") == chat, "a prompt without a template gets it from the tokeniser"


@pytest.mark.parametrize("kind", ["APPLICATION/JSON", "application/json; charset=utf-16"])
async def test_json_is_utf_8_however_its_media_type_is_written(kind: str) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    reply = await make_app().send("POST", "/v1/completions", body, content_type=kind)
    assert reply.status_code == 200
    wide = await make_app().send("POST", "/v1/completions", body.decode().encode("utf-16"), content_type=kind)
    assert wide.status_code == 400


@pytest.mark.parametrize(
    "function",
    [
        {"name": "t", "description": None, "parameters": {}},
        {"name": "t"},
        {"name": "t", "parameters": None},
        {"name": "über.maß"},
        {"name": "t" * 65},
    ],
    ids=str,
)
async def test_a_tool_needs_no_more_than_a_name(function: dict[str, Any]) -> None:
    reply = await make_app().chat("Hi", tools=[{"type": "function", "function": function}], max_tokens=1)
    assert reply.status_code == 200, reply.text


async def test_who_expects_to_be_told_to_continue_is_told_before_the_body_is_sent() -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    body = b'{"prompt": "a", "max_tokens": 1}'
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(make_app().app, nursery)
        with trio.fail_after(10):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
                await stream.send_all(body)
                answer = b"".join([data async for data in stream])
        assert b"HTTP/1.1 200" in answer
        nursery.cancel_scope.cancel()


def test_idle_connections_are_closed_by_those_who_pool_them() -> None:
    assert KEEP_ALIVE_SECONDS > 100
