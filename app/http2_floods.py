"""What an HTTP/2 client can do without end at no cost to itself, counted: resets of requests that it has just begun,
and frames that ask for nothing. Pure; used by app/http2_connection.py, which ends the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset

from app.allowance import Allowance

RESETS = (200, 10.0)
"""Requests that a client may begin and have ended by a reset, its own or ours: at once, and a second."""
FRAMES = (1000, 100.0)
"""Frames that ask for nothing (pings, settings, priorities, windows, data of hardly a byte): at once, and a second."""
SMALL_DATA_BYTES = 64


@final
class Http2Floods:
    """Of one connection."""

    def __init__(self, now: float) -> None:
        self._resets = Allowance(*RESETS, now)
        self._frames = Allowance(*FRAMES, now)

    def is_one(self, events: Sequence[Event], now: float) -> bool:
        """Whether what has just come is too much. `now` is in seconds, by a clock that does not go back."""
        num_resets = sum(isinstance(event, StreamReset) for event in events)
        num_idle = sum(asks_for_nothing(event) for event in events)
        within = self._resets.spend(num_resets, now)
        return not (self._frames.spend(num_idle, now) and within)

    def count_refusal(self) -> None:
        """A request that no handler has seen is as cheap as a reset one."""
        self._resets.give(-1)

    def allow_for_data(self) -> None:
        """For a frame of an answer a client owes two frames about windows."""
        self._frames.give(2)


def asks_for_nothing(event: Event) -> bool:
    match event:
        case DataReceived():
            return len(event.data) < SMALL_DATA_BYTES and event.stream_ended is None
        case RequestReceived() | StreamEnded() | StreamReset():
            return False
        case _:
            return True
