"""Server-sent events on their way through, of which none is begun that may not be finished: when a server breaks off in
the midst of one, its client can still be told so in an event of its own. Pure; used by app/proxy/passed_body.py.
"""

from __future__ import annotations

from typing import final

ENDS = (b"\n\n", b"\n\r\n")
"""Of an event, whatever its lines end with."""
MOST_HELD_BYTES = 2**20
"""Of one event. What is longer goes on as it comes."""


@final
class WholeEvents:
    """Of one stream. Not a byte is changed."""

    def __init__(self) -> None:
        self._held = b""
        self._is_open = False
        """Part of an event has gone on already."""

    def take(self, data: bytes) -> bytes:
        """What can go on now."""
        joined = self._held + data
        searched = max(0, len(self._held) - 2)
        end = max(_end_of(joined, mark, searched) for mark in ENDS)
        if end:
            self._held, self._is_open = joined[end:], False
            return joined[:end]
        if len(joined) <= MOST_HELD_BYTES:
            self._held = joined
            return b""
        self._held, self._is_open = b"", True
        return joined

    def rest(self) -> bytes:
        """What is left when the stream has ended as it should."""
        held, self._held = self._held, b""
        return held

    def broken(self) -> bytes:
        """What goes before an event of our own when the stream has not."""
        self._held = b""
        return ENDS[0] if self._is_open else b""


def _end_of(data: bytes, mark: bytes, start: int) -> int:
    """After the last one; 0 if there is none."""
    place = data.rfind(mark, start)
    return 0 if place < 0 else place + len(mark)
