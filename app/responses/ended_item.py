"""How an item ends before the whole response does: as it is then, and what is told before it is done. Pure.

Used by app/responses/turn.py for what the model has written, and by app/responses/cut_off.py for what a server that has
died left open.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.schemas.response_events import (
    ContentPartDone,
    FunctionCallArgumentsDone,
    OutputTextDone,
    ReasoningTextDone,
    ResponseEvent,
)
from app.schemas.responses import (
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    TextLogprob,
)

Written = MessageItem | ReasoningItem | FunctionCallItem
"""Items that are over with what the model has written of them."""


def ended_item(
    item: Written, index: int, status: ItemStatus, text: str, logprobs: Sequence[TextLogprob] = ()
) -> tuple[Written, list[ResponseEvent]]:
    """`item` as it began, and `index` in the output; `text` is all that was told of its text, thoughts or arguments."""
    where = item.id, index
    match item:
        case MessageItem():
            part = OutputText(text, logprobs=list(logprobs))
            return msgspec.structs.replace(item, status=status, content=[part]), [
                OutputTextDone(*where, text=text, logprobs=part.logprobs),
                ContentPartDone(*where, part=part),
            ]
        case ReasoningItem():
            thoughts = ReasoningText(text)
            return msgspec.structs.replace(item, status=status, content=[thoughts]), [
                ReasoningTextDone(*where, text=text),
                ContentPartDone(*where, part=thoughts),
            ]
        case FunctionCallItem():
            return msgspec.structs.replace(item, status=status, arguments=text), [
                FunctionCallArgumentsDone(*where, name=item.name, arguments=text)
            ]
