"""Answers in a model's dialect, over HTTP: calls that the model chose to make, and thoughts before the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from app.dialects.dialect import Dialect
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.dummy_checkpoint import CHAT_TEMPLATE, IM_END

QWEN = Dialect("hermes", "qwen3")
GPT_OSS = Dialect("openai", "openai_gptoss", frozenset({"<|channel|>", "<|message|>", IM_END}))
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("weather", "time")
]
THOUGHT = "<think>\nAsk the tool.\n</think>\n\n"
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Málaga"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
WEATHER = {"name": "weather", "arguments": '{"city": "Málaga"}'}
TIME = {"name": "time", "arguments": "{}"}


def app_that_writes(text: str, dialect: Dialect = QWEN, **fields: Any) -> AppUnderTest:
    return make_app(reply=lambda prompt, index: text, dialect=dialect, max_model_len=2048, **fields)


async def message_of(under_test: AppUnderTest, *, stream: bool, **fields: Any) -> tuple[dict[str, Any], str, Any]:
    """The first choice's message without ids, its finish reason and the usage, put together if they are streamed."""
    fields = {"tools": TOOLS, **fields}
    if not stream:
        body = (await under_test.chat(**fields)).json
        ChatCompletion.model_validate(body)
        choice = body["choices"][0]
        message = {key: choice["message"].get(key) or None for key in ("content", "reasoning", "tool_calls")}
        message["tool_calls"] = [call["function"] for call in message["tool_calls"] or []]
        return message, choice["finish_reason"], body["usage"]
    reply = await under_test.chat(stream=True, stream_options={"include_usage": True}, **fields)
    return joined([json.loads(line[6:]) for line in reply.text.split("\n\n")[:-2]])


def joined(chunks: list[Any]) -> tuple[dict[str, Any], str, Any]:
    message: dict[str, Any] = {"content": None, "reasoning": None, "tool_calls": []}
    reason = ""
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == 0):
        delta = choice["delta"]
        for key in ("content", "reasoning"):
            if delta.get(key):
                message[key] = (message[key] or "") + delta[key]
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    return message, reason, chunks[-1]["usage"]


@pytest.mark.parametrize("tokens_per_delta", [1, 3, 1000])
@pytest.mark.parametrize("stream", [True, False])
async def test_thoughts_and_calls_are_told_apart(stream: bool, tokens_per_delta: int) -> None:
    under_test = app_that_writes(THOUGHT + CALLS, tokens_per_delta=tokens_per_delta)
    message, reason, usage = await message_of(under_test, stream=stream)
    assert message == {"content": None, "reasoning": "\nAsk the tool.\n", "tool_calls": [WEATHER, TIME]}
    assert reason == "tool_calls"
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


@pytest.mark.parametrize("stream", [True, False])
async def test_one_call_at_most_if_they_may_not_be_parallel(stream: bool) -> None:
    message, reason, _ = await message_of(app_that_writes(CALLS), stream=stream, parallel_tool_calls=False)
    assert (message["tool_calls"], reason) == ([WEATHER], "tool_calls")


@pytest.mark.parametrize("max_tokens", range(1, 70, 7))
async def test_a_cut_answer_ends_with_length_and_is_the_same_streamed_and_whole(max_tokens: int) -> None:
    replies = [
        await message_of(
            app_that_writes(THOUGHT + CALLS, tokens_per_delta=per_delta), stream=stream, max_tokens=max_tokens
        )
        for stream, per_delta in ((True, 1), (True, 5), (False, 1))
    ]
    assert replies[0] == replies[1] == replies[2]
    assert replies[0][1] == "length"
    assert "tool_call" not in (replies[0][0]["content"] or "")


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_of_what_is_no_tool_are_content(stream: bool) -> None:
    text = CALLS.replace("weather", "nosuch").replace("time", "other")
    message, reason, _ = await message_of(app_that_writes(text), stream=stream)
    assert message == {"content": text, "reasoning": None, "tool_calls": []}
    assert reason == "stop"


async def test_without_tools_calls_are_text_and_thoughts_are_not() -> None:
    for fields in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
        message, reason, _ = await message_of(app_that_writes(THOUGHT + CALLS), stream=False, **fields)
        assert message["content"] == "\n\n" + CALLS
        assert message["reasoning"]
        assert reason == "stop"


@pytest.mark.parametrize("stream", [True, False])
async def test_thoughts_are_left_out_if_asked_but_counted(stream: bool) -> None:
    message, _, usage = await message_of(app_that_writes(THOUGHT + "Hi"), stream=stream, include_reasoning=False)
    assert message == {"content": "\n\nHi", "reasoning": None, "tool_calls": []}
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_the_prompt_says_whether_thoughts_have_begun() -> None:
    opened = CHAT_TEMPLATE + "{{ '<think>\\n' if enable_thinking is not false else '<think>\\n\\n</think>\\n\\n' }}"
    under_test = app_that_writes("Hm.</think>Hi", template=opened)
    assert (await message_of(under_test, stream=False))[0] == {"content": "Hi", "reasoning": "Hm.", "tool_calls": []}
    closed = {"enable_thinking": False}
    message, _, usage = await message_of(under_test, stream=False, chat_template_kwargs=closed)
    assert message["content"] == "Hm.</think>Hi"
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}, "tools": None},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ],
)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompted", ["<think>", "</think>", ""])
async def test_a_grammar_holds_after_the_thoughts(fields: dict[str, Any], stream: bool, prompted: str) -> None:
    text = '[{"name": "weather", "parameters": {}}]' if fields.get("tool_choice") == "required" else '{"a": "</think>"}'
    thought = {"<think>": "Hm.</think>", "</think>": "", "": "<think>Hm.</think>"}[prompted]
    under_test = app_that_writes(thought + text, template=CHAT_TEMPLATE + prompted)
    message, reason, _ = await message_of(under_test, stream=stream, n=2, **fields)
    if "tool_choice" in fields:
        assert ([call["name"] for call in message["tool_calls"]], reason) == (["weather"], "tool_calls")
    else:
        assert (message["content"], reason) == (text, "stop")
    assert message["reasoning"] == ("Hm." if thought else None)
    grammar = under_test.engine.prompts[0].sampling_params.grammar
    assert grammar is not None
    assert ("</think>" in grammar.text) is bool(thought)
    assert grammar.text.count("<think>") == (prompted == "")


@pytest.mark.parametrize("stream", [True, False])
async def test_harmony_needs_its_control_tokens_and_shows_none(stream: bool) -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.time"
        '<|constrain|>json<|message|>{"a": 1}'
    )
    under_test = app_that_writes(text, GPT_OSS)
    message, reason, _ = await message_of(under_test, stream=stream)
    assert message == {"content": None, "reasoning": "Hm.", "tool_calls": [{"name": "time", "arguments": '{"a": 1}'}]}
    assert reason == "tool_calls"
    assert under_test.engine.prompts[0].sampling_params.skip_special_tokens is False
    shown = app_that_writes(f"<|channel|>final<|message|>Hi{IM_END}", GPT_OSS)
    assert (await message_of(shown, stream=stream))[0]["content"] == "Hi"


async def test_dialects_whose_marks_are_text_leave_control_tokens_hidden() -> None:
    under_test = app_that_writes(CALLS)
    await message_of(under_test, stream=False)
    assert under_test.engine.prompts[0].sampling_params.skip_special_tokens is True


async def test_a_budget_for_thoughts_is_refused_by_name() -> None:
    reply = await make_app().chat(thinking_token_budget=5)
    assert reply.status_code == 400
    assert reply.json["error"]["param"] == "thinking_token_budget"


async def test_plain_answers_have_no_new_fields() -> None:
    body = (await make_app().chat(max_tokens=3)).json
    assert "reasoning" not in body["choices"][0]["message"]
    assert "completion_tokens_details" not in body["usage"]
