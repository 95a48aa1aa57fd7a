"""A stream in larger steps: fewer events, the same text, and its beginning and its end at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.app_under_test import AppUnderTest, make_app

HEAD = "data: "


async def events(kind: str, under_test: AppUnderTest | None = None, **fields: Any) -> list[dict[str, Any]]:
    under_test = under_test or make_app()
    reply = await (under_test.chat if kind == "chat" else under_test.complete)(stream=True, **fields)
    assert reply.status_code == 200, reply.text
    assert reply.text.endswith("data: [DONE]\n\n")
    return [json.loads(line.removeprefix(HEAD)) for line in reply.text.split("\n\n") if line.startswith(HEAD + "{")]


def texts(found: list[dict[str, Any]], index: int = 0) -> list[str]:
    choices = [choice for event in found for choice in event.get("choices", []) if choice["index"] == index]
    told = [choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices]
    return [text for text in told if text]


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_the_first_token_comes_at_once_and_then_so_many_at_a_time(kind: str) -> None:
    every = texts(await events(kind, max_tokens=10))
    fourth = texts(await events(kind, max_tokens=10, stream_interval=4))
    assert fourth == [every[0], "".join(every[1:5]), "".join(every[5:9]), every[9]]


async def test_each_choice_is_counted_by_itself_and_nothing_is_lost() -> None:
    fields: dict[str, Any] = {"max_tokens": 11, "n": 2, "logprobs": 0, "return_token_ids": True}
    plain, sparse = await events("completions", **fields), await events("completions", stream_interval=7, **fields)
    for index in range(2):
        assert len(texts(sparse, index)) == 3
        assert "".join(texts(sparse, index)) == "".join(texts(plain, index))
        for field in ("tokens", "text_offset", "token_logprobs"):
            assert [
                value
                for event in sparse
                for choice in event["choices"]
                if choice["index"] == index
                for value in choice["logprobs"][field]
            ] == [
                value
                for event in plain
                for choice in event["choices"]
                if choice["index"] == index
                for value in choice["logprobs"][field]
            ]


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("num_before", [1, 2, 4, 5, 6])
async def test_what_was_held_back_is_told_before_an_error(kind: str, num_before: int) -> None:
    whole = texts(await events(kind, max_tokens=10))
    found = await events(kind, make_app(dies_after=num_before), max_tokens=10, stream_interval=4)
    assert "error" in found[-1]
    assert not any("error" in event for event in found[:-1])
    assert "".join(texts(found)) == "".join(whole[:num_before])


async def test_each_choice_s_rest_is_told_when_one_of_them_fails() -> None:
    whole = texts(await events("completions", max_tokens=10))
    found = await events("completions", make_app(fails_after={1: 3}), max_tokens=10, n=2, stream_interval=8)
    assert found[-1]["error"]["message"] == "The grammar went wrong"
    for index in range(2):
        assert "".join(texts(found, index)) == "".join(whole[:3])


@pytest.mark.parametrize("interval", [0, -1])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_interval_below_one_is_refused(interval: int, stream: bool) -> None:
    reply = await make_app().complete(stream_interval=interval, stream=stream)
    assert (reply.status_code, reply.json["error"]["param"]) == (400, "stream_interval")


async def test_a_plain_answer_does_not_mind() -> None:
    plain, sparse = await make_app().complete(max_tokens=9), await make_app().complete(max_tokens=9, stream_interval=4)
    assert plain.json["choices"] == sparse.json["choices"]
