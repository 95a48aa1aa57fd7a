"""An item of which only the beginning has been told: for whoever looks at a response while it is under way. Pure.

Used by app/responses/event_log.py.
"""

from __future__ import annotations

import msgspec

from app.schemas.responses import (
    FunctionCallItem,
    McpCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)


def item_so_far(item: OutputItem, text: str) -> OutputItem:
    """`item` as it was added, with the text, the thoughts or the arguments that it has by now."""
    if not text:
        return item
    match item:
        case MessageItem():
            return msgspec.structs.replace(item, content=[OutputText(text)])
        case ReasoningItem():
            return msgspec.structs.replace(item, content=[ReasoningText(text)])
        case FunctionCallItem() | McpCallItem():
            return msgspec.structs.replace(item, arguments=text)
    return item
