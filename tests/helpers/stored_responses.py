"""Responses, and a store of them without a thread: so that tests have virtual time."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from app.responses.bounds import Bounds
from app.responses.feed import Feed
from app.responses.store import ResponseStore
from app.schemas.response_events import OutputItemAdded, OutputItemDone
from app.schemas.responses import InputItem, InputPart, MessageItem, OutputText, Response, ToldText, ToldTextFormat

T = TypeVar("T")


class Disk:
    """Does what is asked of it at once, unless it has been told to fail."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.num_calls = 0
        self.fails_after = math.inf
        """So many calls are done."""

    async def __call__(self, function: Callable[[], T], /) -> T:
        self.num_calls += 1
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        if self.num_calls > self.fails_after:
            raise sqlite3.OperationalError("disk I/O error")
        return function()


def now() -> float:
    return 1_800_000_000.0


def make_store(path: Path | None = None, disk: Disk | None = None, bounds: Bounds | None = None) -> ResponseStore:
    return ResponseStore(path, now, bounds, disk or Disk())


def make_feed(
    response_id: str = "resp_1", *, background: bool = False, previous: str | None = None, keeps_events: bool = True
) -> Feed:
    """Of a response that has just been made."""
    response = Response(
        id=response_id,
        created_at=1_800_000_000,
        status="queued" if background else "in_progress",
        model="m",
        background=background,
        previous_response_id=previous,
        text=ToldText(ToldTextFormat(type="text")),
    )
    return Feed(response, keeps_events=keeps_events)


def question(text: str, item_id: str = "msg_q") -> InputItem:
    return InputItem(type="message", id=item_id, role="user", content=[InputPart("input_text", text)])


def tell(feed: Feed, text: str) -> None:
    """One message, from its beginning to its end."""
    index = len(feed.log.items)
    item = MessageItem(id=f"msg_{index}", status="completed", content=[OutputText(text)])
    begun = MessageItem(id=item.id, status="in_progress")
    feed.log.append(OutputItemAdded(output_index=index, item=begun))
    feed.log.append(OutputItemDone(output_index=index, item=item))
