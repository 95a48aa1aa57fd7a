"""What is told about stored responses, beside the responses themselves."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items."""

    object: Literal["list"] = "list"
    data: list[Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]]
    """Items, as JSON."""
    first_id: str
    """Nothing for a page without items: OpenAI's clients want a text."""
    last_id: str
    has_more: bool
