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

_ENCODER = msgspec.json.Encoder()


def event(chunk: msgspec.Struct) -> bytes:
    """One event of a struct. JSON escapes every line break, so that it stays one line."""
    return raw_event(_ENCODER.encode(chunk))


def raw_event(data: bytes) -> bytes:
    """One event of JSON that is already encoded."""
    return b"data: " + data + b"\n\n"
