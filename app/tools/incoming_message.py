"""A message of a tool server as it arrives over a connection that many calls share. Pure.

One that is too large to be taken becomes an error of the call that it answers. Nothing but the message itself says
whose it is, and of that only the first and last bytes are kept; but JSON that is written the usual way has the id at
one end. Used by app/tools/small_events.py and app/tools/command_lines.py.
"""

from __future__ import annotations

import re
from typing import final

import msgspec

from app.tools.bounded_body import BodyLimits, count_values
from app.tools.tool_error import ToolError

END_LENGTH = 512
"""Bytes of each end that are kept."""
MAX_SKIPPED_BYTES = 64 * 2**20
"""Of one message: after so many nobody waits any longer for its end."""
INTERNAL_ERROR = -32603

_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")'
_KIND = rb'"(?:result|error)"\s*:'
_ID_FIRST = re.compile(rb"\s*\{\s*(?:%b\s*,\s*)?%b\s*,\s*(?:%b\s*,\s*)?%b" % (_VERSION, _ID, _VERSION, _KIND))
_ANSWER_FIRST = re.compile(rb"\s*\{\s*(?:%b\s*,\s*)?%b" % (_VERSION, _KIND))
_ID_LAST = re.compile(rb",\s*%b\s*(?:,\s*%b\s*)?\}\s*\Z" % (_ID, _VERSION))


@final
class IncomingMessage:
    """Those of one connection, one after the other."""

    def __init__(self, limits: BodyLimits, begins_after: re.Pattern[bytes] | None = None) -> None:
        """`begins_after`: what stands before its JSON."""
        self._limits = limits
        self._begins_after = begins_after
        self._begin()

    def _begin(self) -> None:
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._num_values = 0
        self._ends: tuple[bytes, bytes] | None = None
        """Of one that is too large, of which nothing else is kept."""

    @property
    def is_too_large(self) -> bool:
        return self._ends is not None

    def take(self, piece: bytes) -> None:
        """More of it. Raises ToolError for one without end."""
        self._num_bytes += len(piece)
        self._num_values += count_values(piece)
        if self._ends is not None:
            head, tail = self._ends
            self._ends = head, (tail + piece[-END_LENGTH:])[-END_LENGTH:]
            if self._num_bytes > MAX_SKIPPED_BYTES:
                raise ToolError(f"a message has more than {MAX_SKIPPED_BYTES} bytes")
            return
        self._parts.append(piece)
        if self._num_bytes > self._limits.max_bytes or self._num_values > self._limits.max_values:
            whole = b"".join(self._parts)
            found = None if self._begins_after is None else self._begins_after.search(whole)
            begin = 0 if found is None else found.end()
            self._ends = whole[begin : begin + END_LENGTH], whole[-END_LENGTH:]
            self._parts = []

    def end(self) -> bytes:
        """The whole message, or an error in its place; what is taken after that is the next one. Raises ToolError for
        one that is too large and answers no call."""
        message = b"".join(self._parts)
        if self._ends is not None:
            request_id = answered_id(*self._ends)
            if request_id is None:
                raise ToolError(f"a message that answers no call is too large: {self._size()}")
            message = error_in_its_place(request_id, f"its answer is too large: {self._size()}")
        self._begin()
        return message

    def _size(self) -> str:
        if self._num_bytes > self._limits.max_bytes:
            return f"{self._num_bytes} bytes, and at most {self._limits.max_bytes} are taken"
        most = self._limits.max_values
        return f"{self._num_values} objects, lists and commas, and at most {most} are taken"


def answered_id(head: bytes, tail: bytes) -> bytes | None:
    """Of a message by its two ends: the id of the request that it answers, as JSON. None: it does not answer one, or
    has its id elsewhere."""
    if found := _ID_FIRST.match(head):
        return found[1]
    if _ANSWER_FIRST.match(head) and (found := _ID_LAST.search(tail)):
        return found[1]
    return None


def error_in_its_place(request_id: bytes, reason: str) -> bytes:
    """As JSON."""
    error = {"code": INTERNAL_ERROR, "message": reason}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": msgspec.Raw(request_id), "error": error})
