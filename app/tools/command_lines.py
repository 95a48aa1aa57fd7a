"""What a server of tools that is a command writes: a message a line. Pure. Used by app/tools/command.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from app.tools.bounded_body import BodyLimits
from app.tools.incoming_message import IncomingMessage


@final
class LineReader:
    """Keeps what there is of one line."""

    def __init__(self, limits: BodyLimits) -> None:
        self._line = IncomingMessage(limits)

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The lines that end in it and are not blank. Raises ToolError for one that is too large and answers no
        call."""
        *ends, rest = part.split(b"\n")
        for end in ends:
            self._line.take(end)
            if line := self._line.end().strip():
                yield line
        self._line.take(rest)
