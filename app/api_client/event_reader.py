"""Server-sent events out of bytes as they come. Pure; used by app/api_client/client.py and the benchmarks."""

from __future__ import annotations

from typing import final

DONE = b"[DONE]"
MOST_HELD = 8 << 20
"""Bytes of one event."""


class EventTooLongError(Exception):
    """One event has more than MOST_HELD bytes."""


@final
class EventReader:
    """Of one stream. Comments and fields other than `data` are skipped."""

    def __init__(self) -> None:
        self._held = b""
        self.is_done = False
        """[DONE] has come."""

    def take(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now, without [DONE]. Raises EventTooLongError."""
        *events, self._held = (self._held + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._held) > MOST_HELD:
            raise EventTooLongError(f"an event has more than {MOST_HELD} bytes")
        found = [payload for event in events if (payload := _data_of(event))]
        if DONE in found:
            self.is_done = True
            del found[found.index(DONE) :]
        return found


def _data_of(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:  # nearly all of them
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
