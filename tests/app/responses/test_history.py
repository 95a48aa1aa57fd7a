"""Items to what the model reads."""

from __future__ import annotations

import msgspec
import pytest

from app.limits import Limits
from app.responses.history import chat_messages, without_orphans
from app.responses.input_items import as_input, input_items
from app.responses.tool_names import numbered, shown_name
from app.schemas.chat import Message
from app.schemas.responses import FunctionCallItem, InputItem, MessageItem, OutputText, ReasoningItem, ReasoningText
from protocol.errors import BadRequestError

CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "snow"}
ASKED = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "one", "name": "add", "arguments": "{}"}
ADDED = {"type": "mcp_call", "id": "mcp_1", "server_label": "one", "name": "add", "arguments": "{}", "output": "5"}


def items(*given: dict) -> list[InputItem]:
    return input_items(msgspec.convert(list(given), list[InputItem]), Limits())


def messages(*given: dict, instructions: str | None = None) -> list[Message]:
    return chat_messages(instructions, items(*given))


def roles(found: list[Message]) -> list[str]:
    return [message.role for message in found]


def test_a_text_is_the_user_s_message():
    found = input_items("Hi", Limits())
    assert [(item.type, item.role, item.id[:4]) for item in found] == [("message", "user", "msg_")]
    assert chat_messages(None, found) == [Message("user", "Hi")]


def test_instructions_and_what_else_comes_first_are_one_system_message():
    found = messages(
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}, instructions="Be kind."
    )
    assert found == [Message("system", "Be kind.\n\nBe brief."), Message("user", "Hi")]


def test_thoughts_text_and_calls_of_a_turn_are_one_message():
    thoughts = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]}
    found = messages({"role": "user", "content": "Weather?"}, thoughts, said, CALL, OUTPUT)

    assert roles(found) == ["user", "assistant", "tool"]
    assert (found[1].reasoning_content, found[1].content) == ("Hm.", "Let me look.")
    assert [call.function.name for call in found[1].tool_calls] == ["weather"]
    assert (found[2].tool_call_id, found[2].content, found[2].name) == ("c1", "snow", "weather")


def test_calls_side_by_side_are_one_message_and_calls_one_after_the_other_are_two():
    second = CALL | {"call_id": "c2"}
    assert roles(messages(CALL, second, OUTPUT, OUTPUT | {"call_id": "c2"})) == ["assistant", "tool", "tool"]
    assert roles(messages(CALL, OUTPUT, second)) == ["assistant", "tool", "assistant"]


def test_the_output_of_a_call_that_is_not_there_is_refused():
    with pytest.raises(BadRequestError, match="No tool call found for the function call output with call_id 'c1'"):
        messages({"role": "user", "content": "Hi"}, OUTPUT)


def test_a_tool_that_the_server_ran_is_a_call_and_its_result():
    called, told = messages(ADDED)
    assert called.tool_calls[0].function.name == "one__add"
    assert (told.role, told.content, told.tool_call_id) == ("tool", "5", called.tool_calls[0].id)
    assert len(told.tool_call_id) == 9
    assert messages(ADDED | {"output": None, "error": "It broke"})[1].content == "Error: It broke"


def test_an_approved_call_is_told_once_and_a_refused_one_with_its_reason():
    yes = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    approved = messages(ASKED, yes, ADDED | {"approval_request_id": "mcpr_1"})
    assert roles(approved) == ["assistant", "tool"]
    assert approved[1].content == "5"

    refused = messages(ASKED, yes | {"approve": False, "reason": "Too dear."})
    assert roles(refused) == ["assistant", "tool"]
    assert refused[1].content == "The user has not allowed this call. Too dear."


def test_what_was_told_reads_the_same_when_it_is_sent_back():
    told = [
        ReasoningItem(id="rs_1", status="completed", content=[ReasoningText("Hm.")]),
        MessageItem(id="msg_1", status="completed", content=[OutputText("Hi")]),
        FunctionCallItem(id="fc_1", call_id="c1", name="f", arguments="{}", status="completed"),
    ]
    assert chat_messages(None, [as_input(item) for item in told]) == messages(*msgspec.to_builtins(told))


def test_what_is_cut_off_takes_its_answers_with_it():
    kept = without_orphans(items(OUTPUT, {"role": "user", "content": "Hi"}, CALL | {"call_id": "c2"}))
    assert [item.type for item in kept] == ["message", "function_call"]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user"}, "input[0].content is missing"),
        ({"role": "king", "content": "Hi"}, "input[0].role must be one of"),
        ({"type": "web_search_call"}, "input[0].type must be one of message, reasoning"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "a part of type 'input_image' is refused"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text is missing"),
        (CALL | {"arguments": None}, "input[0].arguments is missing"),
        (OUTPUT | {"output": None}, "input[0].output is missing"),
        (CALL | {"call_id": "c" * 257}, "input[0].call_id has 257 characters; at most 256 are taken"),
        ({"type": "mcp_approval_response", "approve": True}, "input[0].approval_request_id is missing"),
    ],
)
def test_a_wrong_item_is_named(item, message):
    with pytest.raises(BadRequestError) as refused:
        items(item)
    assert message in refused.value.message


def test_there_is_an_input_of_bounded_size_whose_items_differ():
    for given, message in (
        ("", "input must not be empty"),
        ([], "input must not be empty"),
        ([InputItem(role="user", content="a")] * 3, "input has 3 items; at most 2 are taken"),
        ([InputItem(id="a", role="user", content="a")] * 2, "two items of the same id"),
    ):
        with pytest.raises(BadRequestError, match=message):
            input_items(given, Limits(max_messages=2))


def test_names_that_a_model_may_not_read_are_changed_and_stay_apart():
    assert shown_name("one", "add") == "one__add"
    assert numbered("one__add", {"one__add", "one__add_2"}) == "one__add_3"
    assert numbered("x" * 64, {"x" * 64}) == "x" * 62 + "_2"
    names = {
        shown_name("one", "ä" * 100),
        shown_name("one", "ö" * 100),
        shown_name("one", "a.b"),
        shown_name("one", "a b"),
    }
    assert len(names) == 4
    assert all(len(name) <= 64 and name.isascii() for name in names)
