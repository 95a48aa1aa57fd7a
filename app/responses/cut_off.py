"""Responses whose server has died: what had been told of them is their output, and the events that a live server would
have ended them with are told after it. Pure.

Used by app/responses/archive.py, for whoever asks first after the server's death.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from attrs import define, evolve, field

from app.responses.ended_item import ended_item
from app.responses.stored import StoredResponse
from app.schemas.response_events import McpCallArgumentsDone, McpCallFailed, OutputItemDone, ResponseEvent
from app.schemas.responses import FunctionCallItem, McpCallItem, MessageItem, OutputItem, ReasoningItem, TextLogprob

SERVER_DIED = "The server stopped before this response was complete"


class _Told(msgspec.Struct):
    """What matters here of any event."""

    type: str
    output_index: int = 0
    item: msgspec.Raw = msgspec.Raw(b"null")
    delta: str = ""
    logprobs: list[TextLogprob] = []


@define
class _Item:
    item: msgspec.Raw
    """As it was added, or is done."""
    is_done: bool = False
    is_whole: bool = False
    """Whether it is a call whose arguments are told."""
    texts: list[str] = field(factory=list)
    logprobs: list[TextLogprob] = field(factory=list)


_TOLD = msgspec.json.Decoder(_Told)
_ITEM = msgspec.json.Decoder(OutputItem)
_ANY = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()


def cut_off(row: StoredResponse, told: Sequence[tuple[int, bytes]]) -> tuple[StoredResponse, list[tuple[int, bytes]]]:
    """The response as it has failed, and what comes after `told`: the events that were kept, as (sequence number,
    JSON)."""
    items = _items([event for _, event in told])
    number = told[-1][0] + 1 if told else 0
    ends: list[tuple[int, bytes]] = []
    for index, each in enumerate(items):
        if not each.is_done:
            item, events = _ended(each, index)
            each.item = msgspec.Raw(_ENCODER.encode(item))
            for event in [*events, OutputItemDone(output_index=index, item=item)]:
                numbered = msgspec.structs.replace(event, sequence_number=number + len(ends))
                ends.append((numbered.sequence_number, _ENCODER.encode(numbered)))
    body = _ANY.decode(row.response)
    body["output"] = [each.item for each in items]
    body["status"] = "failed"
    body["error"] = {"code": "server_error", "message": SERVER_DIED}
    response = _ENCODER.encode(body)
    last = number + len(ends)
    failed = {"type": "response.failed", "sequence_number": last, "response": msgspec.Raw(response)}
    ends.append((last, _ENCODER.encode(failed)))
    return evolve(row, status="failed", response=response), ends


def _items(events: Sequence[bytes]) -> list[_Item]:
    items: list[_Item] = []
    for event in events:
        told = _TOLD.decode(event)
        match told.type.removeprefix("response."):
            case "output_item.added":
                items.append(_Item(told.item))
            case "output_item.done":
                items[told.output_index] = _Item(told.item, is_done=True)
            case "mcp_call_arguments.done":
                items[told.output_index].is_whole = True
            case _ if told.delta:
                items[told.output_index].texts.append(told.delta)
                items[told.output_index].logprobs += told.logprobs
    return items


def _ended(each: _Item, index: int) -> tuple[OutputItem, list[ResponseEvent]]:
    """An item that is not done, as far as it was told, and what is told before it is done."""
    item, text = _ITEM.decode(each.item), "".join(each.texts)
    match item:
        case MessageItem() | ReasoningItem() | FunctionCallItem():
            return ended_item(item, index, "incomplete", text, each.logprobs)
        case McpCallItem():
            called = msgspec.structs.replace(item, status="incomplete", arguments=text or item.arguments)
            told = [] if each.is_whole else [McpCallArgumentsDone(item.id, index, arguments=called.arguments)]
            return called, [*told, McpCallFailed(item.id, index)]
        case _:
            return item, []
