"""Anthropic's turns as the chat API's messages: what moves where, and what has no place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.messages_history import messages_of
from app.schemas.messages import Block, Turn
from protocol.errors import BadRequestError

CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "x"}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}


def text(of: str) -> dict[str, Any]:
    return {"type": "text", "text": of}


def told(turns: list[dict[str, Any]], system: Any = None) -> list[tuple[str, Any]]:
    """Role and content of each message."""
    return [(message.role, message.content) for message in converted(turns, system)]


def converted(turns: list[dict[str, Any]], system: Any = None) -> list[Any]:
    blocks = msgspec.convert(system, str | list[Block] | None)
    return messages_of(blocks, msgspec.convert(turns, list[Turn]))


def test_strings_and_blocks_of_text_say_the_same() -> None:
    plain = told([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}], "Be brief")
    blocks = told(
        [{"role": "user", "content": [text("Hi")]}, {"role": "assistant", "content": [text("Ho")]}], [text("Be brief")]
    )
    assert plain == blocks == [("system", "Be brief"), ("user", "Hi"), ("assistant", "Ho")]


def test_without_a_system_prompt_there_is_no_message_for_it() -> None:
    for system in (None, "", []):
        assert told([{"role": "user", "content": "Hi"}], system) == [("user", "Hi")]


def test_a_call_and_its_result_become_the_chat_api_s() -> None:
    assistant, tool = converted(
        [
            {
                "role": "assistant",
                "content": [THOUGHT, text("I"), CALL],
            },
            {"role": "user", "content": [RESULT]},
        ]
    )
    assert (assistant.role, assistant.content, assistant.reasoning_content) == ("assistant", "I", "Hm")
    (call,) = assistant.tool_calls
    assert (call.id, call.type, call.function.name, call.function.arguments) == (
        "c1",
        "function",
        "weather",
        {"city": "Oslo"},
    )
    assert (tool.role, tool.tool_call_id, tool.content) == ("tool", "c1", "rain")


def test_results_come_before_the_text_beside_them() -> None:
    content = [text("And?"), {**RESULT, "content": [text("rain"), text("wind")]}, text("Now?")]
    assert told([{"role": "user", "content": content}]) == [("tool", "rain\nwind"), ("user", "And?\nNow?")]


@pytest.mark.parametrize("content", [None, "", []])
def test_a_result_may_be_empty(content: Any) -> None:
    assert told([{"role": "user", "content": [{**RESULT, "content": content}]}]) == [("tool", "")]


def test_a_failed_call_is_told_as_one() -> None:
    assert told([{"role": "user", "content": [{**RESULT, "is_error": True}]}]) == [("tool", "Error: rain")]


def test_turns_of_the_user_that_follow_each_other_are_one() -> None:
    turns = [{"role": role, "content": role} for role in ("ctx", "user", "msg", "assistant", "user")]
    assert told(turns) == [("user", "ctx\nuser\nmsg"), ("assistant", "assistant"), ("user", "user")]


def test_a_system_message_before_all_turns_joins_the_system_prompt() -> None:
    system = {"role": "system", "content": "B"}
    assert told([system, {"role": "user", "content": "Hi"}], "A") == [("system", "A\nB"), ("user", "Hi")]
    assert told([system, {"role": "user", "content": "Hi"}]) == [("system", "B"), ("user", "Hi")]


def test_a_system_message_between_turns_stays_where_it_is_as_text_of_the_user() -> None:
    note = {"role": "system", "content": [text("Note")]}
    user, assistant = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}
    called, result = {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}
    assert told([user, note]) == [("user", "Hi\nNote")]
    assert told([user, assistant, note, user]) == [("user", "Hi"), ("assistant", "Ho"), ("user", "Hi\nNote")]
    assert told([user, assistant, note]) == [("user", "Hi"), ("assistant", "Ho"), ("user", "Note")]
    assert told([user, called, note, result]) == [("user", "Hi"), ("assistant", ""), ("tool", "rain\nNote")]
    assert told([user, called, result, note]) == [("user", "Hi"), ("assistant", ""), ("tool", "rain\nNote")]


def test_a_conversation_only_grows_at_its_end() -> None:
    turns: list[dict[str, Any]] = []
    before: list[tuple[str, Any]] = []
    for i in range(4):
        turns += [{"role": "system", "content": f"s{i}"}, {"role": "user", "content": f"u{i}"}]
        now = told(turns, "A")
        assert now[: len(before)] == before
        turns.append({"role": "assistant", "content": f"a{i}"})
        before = told(turns, "A")


def test_claude_code_s_attribution_is_left_out() -> None:
    system = [text("x-anthropic-billing-header: cc_version=1; cch=5f;"), text("Be brief")]
    assert told([{"role": "user", "content": "Hi"}], system) == [("system", "Be brief"), ("user", "Hi")]


def test_redacted_thoughts_are_left_out() -> None:
    content = [{"type": "redacted_thinking", "data": "x"}, text("Ho")]
    (message,) = converted([{"role": "assistant", "content": content}])
    assert (message.content, message.reasoning_content) == ("Ho", None)


@pytest.mark.parametrize(
    ("turn", "param", "value"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].role", "'tool'"),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, "messages[0].content[0]", "'image'"),
        ({"role": "user", "content": [text("a"), {"type": "document"}]}, "messages[0].content[1]", "'document'"),
        ({"role": "user", "content": [CALL]}, "messages[0].content[0]", "'tool_use'"),
        ({"role": "user", "content": [{"type": "thinking", "thinking": ""}]}, "messages[0].content[0]", "'thinking'"),
        ({"role": "assistant", "content": [RESULT]}, "messages[0].content[0]", "'tool_result'"),
        ({"role": "system", "content": [RESULT]}, "messages[0].content[0]", "'tool_result'"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text", "missing"),
        ({"role": "user", "content": [{"type": "tool_result"}]}, "messages[0].content[0].tool_use_id", "missing"),
        ({"role": "assistant", "content": [{**CALL, "id": None}]}, "messages[0].content[0].id", "missing"),
        ({"role": "assistant", "content": [{**CALL, "name": None}]}, "messages[0].content[0].name", "missing"),
        ({"role": "assistant", "content": [{"type": "thinking"}]}, "messages[0].content[0].thinking", "missing"),
        ({"role": "user", "content": [RESULT] * 16_385}, "messages", "at most 16384"),
        ({"role": "user", "content": [{**RESULT, "content": [text("a")] * 16_384}]}, "messages", "16385 blocks"),
        (
            {"role": "user", "content": [{**RESULT, "content": [{"type": "image"}]}]},
            "messages[0].content[0].content[0]",
            "'image'",
        ),
    ],
)
def test_what_has_no_place_is_refused_by_name(turn: dict[str, Any], param: str, value: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        converted([turn])
    assert caught.value.param == param
    assert param in caught.value.message
    assert value in caught.value.message


def test_any_number_of_notes_may_follow_one_turn() -> None:
    turns = [{"role": "user", "content": "x" * 1000}] + [{"role": "system", "content": "y"}] * 4000
    (message,) = converted(turns)
    assert message.content == "x" * 1000 + "\ny" * 4000
