"""How the streams of each API end. Used by app/stream.py for our own, and by app/proxy/passed_body.py for those of
servers that break off."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from app import sse
from app.failures import error_body, told
from app.messages_error import is_messages_path, messages_error_body
from protocol.errors import TrillmError


@frozen
class Ending:
    failure: Callable[[TrillmError, str], bytes]
    """The event for an error, of the request with this label."""
    last: bytes
    """After everything else, whether it failed or not."""


def _messages_failure(error: TrillmError, request_id: str) -> bytes:
    return b"event: error\n" + sse.raw_event(messages_error_body(error.status, told(error), request_id))


OPENAI = Ending(lambda error, _: sse.raw_event(error_body(error)), sse.DONE)
MESSAGES = Ending(_messages_failure, b"")
"""message_stop, or the error, is the last event."""


def ending_at(path: str) -> Ending:
    """As the clients of this path read it; `path` is without the server's prefix."""
    return MESSAGES if is_messages_path(path) else OPENAI
