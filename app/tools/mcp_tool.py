"""One tool of a server, as the server lists it: bounded, and in our own terms. Made by app/tools/tool_pages.py."""

from __future__ import annotations

from typing import Any

import msgspec
from attrs import frozen

MAX_TOOLS = 512
"""Of one server."""
MAX_PAGES = 64
MAX_LISTING_BYTES = 2**20
"""Names, descriptions and schemas of one server, in JSON."""
MAX_NAME_LENGTH = 256


@frozen
class McpTool:
    name: str
    description: str
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None = None
    """What the server says of it: a title, readOnlyHint, destructiveHint, … . Nobody has checked it."""

    @property
    def is_read_only(self) -> bool:
        return bool(self.annotations and self.annotations.get("readOnlyHint") is True)

    @property
    def size(self) -> int:
        """Bytes in JSON."""
        return len(msgspec.json.encode((self.name, self.description, self.input_schema, self.annotations)))
