"""Items as `GET /v1/responses/{id}/input_items` lists them: with every field that OpenAI's clients require, also where
a request left it out. Pure.

There may be 64 MiB of them: but for those of the page they stay JSON, and those are read one after the other. Used by
app/responses/store.py, in a worker thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from attrs import frozen

from app.schemas.stored_responses import ItemList
from protocol.errors import BadRequestError

MAX_LIMIT = 100
DEFAULT_LIMIT = 20

Item = dict[str, Any]


class _Identified(msgspec.Struct):
    id: str | None = None


_IDENTIFIED = msgspec.json.Decoder(_Identified)
_ITEM = msgspec.json.Decoder(Item)
_ENCODER = msgspec.json.Encoder()


@frozen
class Page:
    """Which of the items."""

    limit: int = DEFAULT_LIMIT
    is_ascending: bool = False
    after: str | None = None
    """The id of the one that they follow."""

    def of(self, items: Sequence[msgspec.Raw]) -> ItemList:
        """`items`: the oldest first. Raises BadRequestError if none has the id `after`."""
        ordered = items if self.is_ascending else items[::-1]
        start = self._start(ordered)
        some = ordered[start : start + self.limit]
        ids = [_id(item) or "" for item in some] or [""]
        return ItemList(
            data=[msgspec.Raw(_ENCODER.encode(listed(_ITEM.decode(item)))) for item in some],
            first_id=ids[0],
            last_id=ids[-1],
            has_more=start + self.limit < len(ordered),
        )

    def _start(self, items: Sequence[msgspec.Raw]) -> int:
        if self.after is None:
            return 0
        for at, item in enumerate(items):
            if _id(item) == self.after:
                return at + 1
        raise BadRequestError(f"after: the response has no input item {self.after[:80]!r}", param="after")


def _id(item: msgspec.Raw) -> str | None:
    return _IDENTIFIED.decode(item).id


def listed(item: Item) -> Item:
    kind = item.get("type") or "message"
    whole: Item = {"type": kind, **item}
    match kind:
        case "message":
            whole |= {"status": item.get("status") or "completed", "content": _parts(item)}
        case "reasoning":
            whole |= {"summary": item.get("summary") or []}
        case "function_call" | "function_call_output":
            whole |= {"status": item.get("status") or "completed"}
        case "mcp_list_tools":
            whole |= {"tools": item.get("tools") or []}
    return whole


def _parts(item: Item) -> list[Item]:
    content = item.get("content") or []
    is_assistant = item.get("role") == "assistant"
    if isinstance(content, str):
        content = [{"type": "output_text" if is_assistant else "input_text", "text": content}]
    return [_part(part) for part in content]


def _part(part: Item) -> Item:
    if part["type"] == "output_text":
        return {"annotations": [], "logprobs": [], **part}
    return part
