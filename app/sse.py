"""Server-sent events as OpenAI's clients read them: one `data:` line of JSON per event, and [DONE] at the very end."""

from __future__ import annotations

import msgspec

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""No cache and no proxy keeps events back."""

DONE = b"data: [DONE]\n\n"

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients skip: it keeps proxies from taking a stream that says nothing for a dead one."""

_ENCODER = msgspec.json.Encoder()


def event(chunk: msgspec.Struct) -> bytes:
    """One event of a struct. JSON escapes every line break, so that it stays one line."""
    return raw_event(_ENCODER.encode(chunk))


def raw_event(data: bytes) -> bytes:
    """One event of JSON that is already encoded."""
    return b"data: " + data + b"\n\n"


class TextEvents:
    """Events of which only one text differs: everything around it is encoded once."""

    def __init__(self, chunk: msgspec.Struct, field: str) -> None:
        """`chunk` has "" in its only field of this name."""
        name = f'"{field}":'.encode()
        # No string in the chunk can look like this, since JSON puts a backslash before a quote in a string.
        before, found, self._after = event(chunk).partition(name + b'""')
        assert found, f"{field} is not empty in {chunk}"
        self._before = before + name

    def event(self, text: str) -> bytes:
        return self._before + _ENCODER.encode(text) + self._after
