"""How much of a result fits, and what is told of one that does not."""

from __future__ import annotations

import msgspec
import pytest

from app.responses.result_room import explained, fitted, room_for_results
from app.schemas.responses import McpCallItem, McpProtocolError, MessageItem, text_error
from protocol.errors import BadRequestError
from tests.helpers.app_under_test import make_tokenizer

TOKENIZER = make_tokenizer()


def called(output: str | None = None, name: str = "read", **fields) -> McpCallItem:
    return McpCallItem(
        id="mcp_1", server_label="one", name=name, arguments="{}", status="completed", output=output, **fields
    )


def num_tokens(text: str) -> int:
    return len(TOKENIZER.encode(text, add_special_tokens=False))


@pytest.mark.parametrize(
    ("context", "num_used", "room"), [(1000, 100, 650), (1000, 500, 250), (1000, 800, 100), (1000, 2000, 0)]
)
def test_a_quarter_of_the_context_stays_free_or_half_of_what_is_left(context, num_used, room):
    assert room_for_results(context, num_used) == room


async def test_a_result_that_fits_is_told_as_it_is_and_its_tokens_are_counted():
    for item in (called("It is five."), called(error=text_error("It is five."))):
        result = await fitted(item, 100, TOKENIZER)
        assert (result.call, result.num_tokens) == (item, num_tokens("It is five."))
    for item in (called(""), called(), called(error=McpProtocolError(-1, "It broke"))):
        assert await fitted(item, 100, TOKENIZER) == await fitted(item, 0, TOKENIZER)


@pytest.mark.parametrize("most", [0, 1, 150, 400])
@pytest.mark.parametrize("text", ["word " * 1000, '"' * 5000, "\n" * 5000, "x" * 100_000, "é🙂" * 2000])
async def test_a_result_that_does_not_fit_is_cut_to_what_does(text, most):
    result = await fitted(called(text), most, TOKENIZER)

    told = result.call.output
    kept, note = told.rsplit("\n", 1)
    assert text.startswith(kept)
    assert note.startswith(f"[cut: {len(text)} characters do not fit ")
    assert note.endswith(f"the first {len(kept)} are told]")
    assert result.num_tokens == num_tokens(told)
    assert result.num_tokens <= max(most, num_tokens(f"\n{note}"))


async def test_what_a_tool_failed_with_is_cut_as_well():
    result = await fitted(called(error=text_error("word " * 1000)), 200, TOKENIZER)

    [part] = msgspec.to_builtins(result.call.error)["content"]
    assert part["type"] == "text"
    assert "[cut: 5000 characters" in part["text"]


def test_the_tool_that_has_told_most_is_named_where_the_context_is_full():
    error = BadRequestError("Too long.", param="input", code="context_length_exceeded")
    items = [called("five"), called("a longer one", "search"), MessageItem(id="msg_1", status="completed")]

    found = explained(error, items)

    assert found.message == (
        "Too long. The longest result in it is that of the tool 'search' of the MCP server 'one', with 12 characters."
    )
    assert (found.param, found.code) == ("input", "context_length_exceeded")
    assert explained(error, items[2:]) is error
    other = BadRequestError("Something else")
    assert explained(other, items) is other
