"""Items as `GET /v1/responses/{id}/input_items` lists them: with every field that OpenAI's clients require, also where
a request left it out. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.schemas.stored_responses import ItemList
from protocol.errors import BadRequestError

MAX_LIMIT = 100
DEFAULT_LIMIT = 20

Item = dict[str, Any]


def page(items: Sequence[Item], *, limit: int, is_ascending: bool, after: str | None) -> ItemList:
    """The items that follow the one with the id `after`. Raises BadRequestError if there is none."""
    ordered = list(items if is_ascending else reversed(items))
    start = 0
    if after is not None:
        ids = [item.get("id") for item in ordered]
        if after not in ids:
            raise BadRequestError(f"after: the response has no input item {after[:80]!r}", param="after")
        start = ids.index(after) + 1
    told = [listed(item) for item in ordered[start : start + limit]]
    return ItemList(
        data=told,
        first_id=told[0]["id"] if told else None,
        last_id=told[-1]["id"] if told else None,
        has_more=start + limit < len(ordered),
    )


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
