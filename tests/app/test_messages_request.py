"""Anthropic's fields as the chat API's, and what only Anthropic's form can have wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.limits import Limits
from app.messages_request import chat_request, counted_request
from app.schemas.chat import ChatRequest, NamedFunction, NamedToolChoice
from app.schemas.messages import CountTokensRequest, MessagesRequest
from protocol.errors import BadRequestError

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "name": "weather",
    "description": "Tells it",
    "input_schema": {"type": "object"},
    "cache_control": {"type": "x"},
}


def converted(**fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 5, "messages": [USER], **fields}
    return chat_request(msgspec.convert(body, MessagesRequest), Limits())


def test_sampling_and_limits_come_over_under_the_chat_api_s_names() -> None:
    chat = converted(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["a"], max_tokens=9, seed=3, stream=True)
    assert (chat.model, chat.temperature, chat.top_p, chat.top_k) == ("m", 0.5, 0.9, 7)
    assert (chat.stop, chat.max_tokens, chat.seed, chat.stream) == (["a"], 9, 3, True)


def test_what_nobody_here_needs_is_ignored() -> None:
    ignored = {"metadata": {"user_id": "u"}, "service_tier": "auto", "container": "c", "cache_control": {"type": "x"}}
    assert converted(**ignored) == converted()


def test_tools_are_functions() -> None:
    (tool,) = converted(tools=[{**TOOL, "type": "custom", "strict": True}]).tools
    assert (tool.type, tool.function.name, tool.function.description) == ("function", "weather", "Tells it")
    assert (tool.function.parameters, tool.function.strict) == ({"type": "object"}, True)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, NamedToolChoice("function", NamedFunction("weather"))),
    ],
)
def test_how_tools_are_chosen_comes_over(choice: Any, expected: Any) -> None:
    chat = converted(tools=[TOOL], tool_choice=choice)
    assert chat.tool_choice == expected
    assert chat.parallel_tool_calls is True
    if choice is not None:
        assert not converted(
            tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True}
        ).parallel_tool_calls


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, {}),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True, "thinking": True}),
        ({"type": "adaptive"}, {"enable_thinking": True, "thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False, "thinking": False}),
    ],
)
def test_thinking_is_a_variable_of_the_template(thinking: Any, expected: dict[str, Any]) -> None:
    assert converted(thinking=thinking).chat_template_kwargs == expected


def test_a_client_s_own_variables_go_before() -> None:
    kwargs = converted(thinking={"type": "disabled"}, chat_template_kwargs={"thinking": True}).chat_template_kwargs
    assert kwargs == {"enable_thinking": False, "thinking": True}


def test_effort_and_format_come_over() -> None:
    schema = {"type": "object"}
    chat = converted(output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}})
    assert chat.reasoning_effort == "high"
    assert chat.response_format.type == "json_schema"
    assert chat.response_format.json_schema.schema == schema
    assert converted().response_format is None


def test_an_answer_that_the_client_has_begun_goes_on() -> None:
    begun = {"role": "assistant", "content": "Ho"}
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {}}]}
    assert converted(messages=[USER, begun]).continue_final_message is True
    assert not converted(messages=[USER, called]).continue_final_message
    assert not converted().continue_final_message


def test_what_is_counted_is_the_prompt_that_would_be_sent() -> None:
    fields = {"system": "s", "tools": [TOOL], "tool_choice": {"type": "none"}, "thinking": {"type": "adaptive"}}
    body = {"model": "m", "messages": [USER], **fields}
    counted = counted_request(msgspec.convert(body, CountTokensRequest), Limits())
    chat = converted(**fields)
    for name in ("model", "messages", "tools", "tool_choice", "continue_final_message", "chat_template_kwargs"):
        assert msgspec.structs.asdict(counted)[name] == msgspec.structs.asdict(chat)[name]


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"messages": [], "system": "s"}, "messages", "empty"),
        ({"messages": [USER] * 4097}, "messages", "4096"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type", "web_search_20250305"),
        ({"tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type", "bash_20250124"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type", "'some'"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "missing"),
        ({"thinking": {"type": "maybe"}}, "thinking.type", "'maybe'"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens", "at least 1, not 0"),
        ({"thinking": {"type": "enabled", "display": "loud"}}, "thinking.display", "'loud'"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "'huge'"),
        ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type", "'xml'"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences", "at most 16"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]", "1 to 1024"),
        ({"stop_sequences": ["a" * 1025]}, "stop_sequences[0]", "1025"),
    ],
)
def test_what_cannot_be_is_refused_by_name_limit_and_value(fields: dict[str, Any], param: str, told: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        converted(**fields)
    assert caught.value.param == param
    assert param in caught.value.message
    assert told in caught.value.message
