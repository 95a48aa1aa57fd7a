"""Items as they are listed have every field that clients require, whatever was sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from app.responses.listed_items import Page, listed
from protocol.errors import BadRequestError

ITEM = TypeAdapter[ResponseItem](ResponseItem)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "id": "msg_1", "role": "user", "content": "Hi"},
        {"id": "msg_1", "role": "system", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": "Hi"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]},
        {"type": "reasoning", "id": "rs_1"},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "7"},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "error": "down"},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "f", "arguments": "{}", "output": "7"},
        {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "f", "arguments": "{}"},
        {"type": "mcp_approval_response", "id": "mcpa_1", "approval_request_id": "mcpr_1", "approve": True},
    ],
)
def test_openai_s_client_takes_each_kind(item: dict[str, Any]) -> None:
    told = listed(item)
    ITEM.validate_python(told)
    assert told["id"] == item["id"]


def test_pages_follow_each_other_in_either_order() -> None:
    items = [msgspec.Raw(b'{"type":"reasoning","id":"rs_%d"}' % n) for n in range(5)]
    for is_ascending in (True, False):
        ids: list[str] = []
        after = None
        for _ in range(3):
            told = Page(2, is_ascending, after).of(items)
            data = [msgspec.json.decode(item) for item in told.data]
            ids += [item["id"] for item in data]
            assert (told.first_id, told.last_id) == (data[0]["id"], data[-1]["id"])
            after = told.last_id
        assert not told.has_more
        assert ids == [f"rs_{n}" for n in (range(5) if is_ascending else range(4, -1, -1))]
    empty = Page(2).of([])
    assert (empty.data, empty.first_id, empty.last_id, empty.has_more) == ([], "", "", False)
    with pytest.raises(BadRequestError, match="rs_9"):
        Page(2, after="rs_9").of(items)
