"""What a client gets wrong: always a 4xx with OpenAI's error object, short, naming the field, the same each time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.limits import Limits
from tests.helpers.app_under_test import AppUnderTest, Reply, make_app

HI = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


async def send(under_test: AppUnderTest, path: str, data: bytes, kind: str | None = "application/json") -> Reply:
    return await under_test.send("POST", path, data, content_type=kind)


def refusal(response: Reply, status: int = 400) -> dict[str, Any]:
    body = response.data
    assert response.status_code == status, body[:300]
    assert len(body) < 1024
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


SHARED = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": 1e308}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": [1]}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.0001}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"presence_penalty": -2.5}, "presence_penalty"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 2**200}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "7"}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": "two"}, "n"),
    ({"n": True}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"logit_bias": {"512": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"²": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [512]}, "allowed_token_ids"),
    ({"allowed_token_ids": [5] * 513}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"bad_words": ["  "]}, "bad_words"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": 123}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x" * 10_000}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [10_000_000]}, "stop_token_ids"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 50_000}, "prompt_logprobs"),
    ({"stream": "perhaps"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"priority": 2**31}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "x" * 1025}, "cache_salt"),
    ({"model": 5}, "model"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
]


@pytest.mark.parametrize(("fields", "param"), SHARED, ids=lambda value: json.dumps(value)[:40])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_field_outside_its_range_or_type_is_named_and_never_reaches_the_engine(
    path: str, fields: dict[str, Any], param: str
) -> None:
    under_test = make_app()
    subject = {"messages": HI} if path == CHAT else {"prompt": "Hi"}
    first, second = [refusal(await under_test.post(path, **subject | fields)) for _ in range(2)]
    assert first == second
    assert first["param"].split("[")[0].split(".")[0] == param
    assert param in first["message"]
    assert under_test.engine.prompts == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": {"n": 1}}] * 2000}, "messages[0].content"),
        ({"messages": HI * 5000}, "messages"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens"),
        ({"messages": HI, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": HI, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HI, "logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": HI, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"messages": HI, "logprobs": 3}, "logprobs"),
        ({"messages": HI, "tools": "hammer"}, "tools"),
        ({"messages": HI, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HI, "tool_choice": "sometimes"}, "tool_choice"),
        ({"messages": HI, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({"messages": HI, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
async def test_a_wrong_chat_is_refused_with_the_field_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(await make_app().post(CHAT, **fields))
    assert error["param"] == param


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "",
        [],
        [[]],
        [""],
        ["a", ""],
        [-1],
        [512],
        [2**64],
        [1.0],
        [True],
        ["a", 1],
        [[1, 2], "a"],
        [[1, 2.5]],
        {"a": 1},
        5,
        [{"x": 1}],
        ["a"] * 1025,
    ],
    ids=lambda value: json.dumps(value)[:30],
)
async def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    under_test = make_app()
    error = refusal(await under_test.complete(prompt, max_tokens=2))
    assert error["param"].split("[")[0] == "prompt"
    assert under_test.engine.prompts == []


@pytest.mark.parametrize(
    ("prompt", "fields", "total"),
    [
        ([[5] * 100] * 4, {"n": 25}, 10_000),
        ([5] * 10, {"n": 100, "allowed_token_ids": list(range(91))}, 10_100),
        ([5] * 100, {"n": 90, "stop_token_ids": [7] * 5 + list(range(8, 19))}, 10_080),
        ([5] * 100, {"n": 50, "logit_bias": {str(i): 1 for i in range(101)}}, 10_050),
    ],
)
async def test_what_n_multiplies_is_bounded(prompt: Any, fields: dict[str, Any], total: int) -> None:
    under_test = make_app(limits=Limits(max_token_ids=9_999))
    error = refusal(await under_test.complete(prompt, max_tokens=2, **fields))
    assert f"make {total} token ids; at most 9999" in error["message"]
    assert error["param"] == "n"
    assert under_test.engine.prompts == []
    assert (await under_test.complete([5] * 10, max_tokens=2, n=20)).status_code == 200


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 4}, {"echo": True, "logprobs": 4}])
async def test_what_is_told_of_prompts_is_bounded(fields: dict[str, Any]) -> None:
    under_test = make_app(limits=Limits(max_prompt_logprobs=999))
    error = refusal(await under_test.complete([[5] * 50] * 2, max_tokens=2, n=2, **fields))
    assert "make 1000 log-probabilities; at most 999" in error["message"]
    assert under_test.engine.prompts == []
    assert (await under_test.complete([5] * 50, max_tokens=2, n=2, **fields)).status_code == 200


@pytest.mark.parametrize("prompt", [[5] * 300, [[5] * 300], [5] * 299 + [10**9], [5] * 299 + ["a"]])
async def test_a_list_of_ids_over_the_context_is_refused_before_the_ids_are_looked_at(prompt: Any) -> None:
    error = refusal(await make_app().complete(prompt, max_tokens=2))
    assert "maximum context length is 256 tokens, but the prompt alone has 300" in error["message"]


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_a_conversation_of_too_many_values_is_refused_before_it_is_rendered(path: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    for extra in ({"a": [1] * 60_000}, {str(i): "<|im_end|>" for i in range(60_000)}):
        error = refusal(await make_app().post(path, messages=messages, chat_template_kwargs=extra))
        assert "more than 50000 values" in error["message"]


async def test_an_mcp_server_among_the_tools_of_a_chat_is_refused_with_the_route_that_takes_it() -> None:
    server = {"type": "mcp", "server_label": "docs", "server_url": "https://docs.example/mcp"}
    weather = {"type": "function", "function": {"name": "weather"}}
    error = (await make_app().chat(tools=[weather, server])).json["error"]
    assert error["message"] == "tools[1] is an MCP server, which only POST /v1/responses takes"
    assert error["param"] == "tools[1].type"
    bare = (await make_app().chat(tools=[{"type": "function"}])).json["error"]
    assert (bare["message"], bare["param"]) == ("tools[0] is no function with a name", "tools[0]")


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_tools_are_checked_wherever_they_are_rendered(path: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    one = {"type": "function", "function": {"name": "f"}}
    for tools in ([one, one], [{"type": "function", "function": {"name": str(i)}} for i in range(129)]):
        error = refusal(await make_app().post(path, messages=messages, tools=tools))
        assert error["param"] == "tools"


async def test_a_suffix_is_refused_and_a_null_one_is_not() -> None:
    under_test = make_app()
    assert (refusal(await under_test.complete(suffix="x")))["param"] == "suffix"
    assert (await under_test.complete(suffix=None, max_tokens=1)).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"123",
        b'{"prompt": "a"} x',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "a", "unknown": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b"[" * 20_000,
        b'{"prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"prompt": "a", "unknown": ' + b'{"a":' * 300 + b"1" + b"}" * 301,
        b'{"prompt": "a", "max_tokens": ' + b"9" * 50_000 + b"}",
        b'{"' + b"x" * 50_000 + b'": "\xff"}',
    ],
    ids=lambda data: repr(data[:30]),
)
async def test_a_body_that_is_no_json_object_is_refused_in_a_few_words(data: bytes) -> None:
    refusal(await send(make_app(), COMPLETIONS, data))


@pytest.mark.parametrize("kind", ["text/plain", None, "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_another_media_type_is_refused(kind: str | None) -> None:
    refusal(await send(make_app(), COMPLETIONS, b'{"prompt": "a"}', kind), 415)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "application/vnd.x+json"])
async def test_json_is_taken_under_its_media_types(kind: str) -> None:
    assert (await send(make_app(), COMPLETIONS, b'{"prompt": "a", "max_tokens": 1}', kind)).status_code == 200


async def test_a_body_over_the_limit_is_refused() -> None:
    error = refusal(await send(make_app(limits=Limits(max_body_bytes=100)), COMPLETIONS, b" " * 101), 413)
    assert error["code"] == "payload_too_large"


async def test_an_unknown_model_is_named() -> None:
    error = refusal(await make_app().complete(model="no-such-model"), 404)
    assert "no-such-model" in error["message"]
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"


async def test_an_unknown_field_is_ignored() -> None:
    assert (await make_app().complete(max_tokens=1, some_new_field={"a": [1]})).status_code == 200


@pytest.mark.parametrize("max_tokens", [None, 1, 500])
async def test_a_prompt_over_the_context_is_refused_with_the_numbers(max_tokens: int | None) -> None:
    error = refusal(await make_app().complete([40] * 256, max_tokens=max_tokens))
    assert error["code"] == "context_length_exceeded"
    assert error["message"].count("256") == 2
    assert "-" not in error["message"]


async def test_prompt_and_answer_over_the_context_are_refused_with_the_numbers() -> None:
    error = refusal(await make_app().complete([40] * 200, max_tokens=57))
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("256", "200", "57"))
    assert (await make_app().complete([40] * 200, max_tokens=56)).status_code == 200


async def test_a_text_that_can_never_fit_is_refused_before_it_is_tokenised() -> None:
    error = refusal(await make_app().chat("hello " * 1_000_000))
    assert error["code"] == "context_length_exceeded"


async def test_an_over_long_chat_without_max_tokens_is_refused() -> None:
    error = refusal(await make_app().chat("hello " * 300))
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/v1/nothing/here", 404), ("GET", CHAT, 405)])
async def test_unknown_routes_and_methods_are_json(method: str, path: str, status: int) -> None:
    response = await make_app().send(method, path, b"")
    refusal(response, status)
    assert (response.headers.get("Allow") is not None) == (status == 405)
