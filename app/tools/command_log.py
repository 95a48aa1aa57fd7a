"""What a server of tools that is a command says of itself: its stderr, and lines of its stdout that are no messages.

They go to our log with the server's label before them, so that the operator knows whose they are. Used by
app/tools/command.py.
"""

from __future__ import annotations

import logging
import re
from typing import final

import trio

logger = logging.getLogger("trillm.tools")

MAX_LINE_LENGTH = 500
"""Characters; the rest of a line is not told."""
MAX_LINES = 50
"""In a window; others are counted, not told."""
WINDOW_SECONDS = 10.0
READ_BYTES = 2**14
FLOOD_SECONDS = 0.01
"""Between reads that find so much: a command that writes faster waits, and not everybody else."""
_GRAVE = re.compile(r"warn|error|critical|fatal|exception|traceback|panic", re.IGNORECASE)


@final
class CommandLog:
    """Of one run of a command."""

    def __init__(self, label: str) -> None:
        """`label`: what the operator calls the server."""
        self._label = label
        self._line = bytearray()
        """What has come of the line that has not ended; no more than is told."""
        self._window_began = trio.current_time()
        self._num_lines = 0
        self._num_left_out = 0

    async def listen(self, stderr: trio.abc.ReceiveStream) -> None:
        """To its end. May be cancelled, and called again: nothing is lost."""
        while part := await stderr.receive_some(READ_BYTES):
            self.feed(bytes(part))
            if len(part) == READ_BYTES:
                await trio.sleep(FLOOD_SECONDS)
        self.feed(b"\n")

    def feed(self, part: bytes) -> None:
        """More of stderr."""
        *ends, rest = part.split(b"\n")
        for end in ends:
            self._take(end)
            line = self._line.decode(errors="replace")
            self._line.clear()
            self._tell(logging.WARNING if _GRAVE.search(line) else logging.INFO, line)
        self._take(rest)

    def stray(self, line: bytes) -> None:
        """A line of stdout that is no message."""
        self._tell(logging.WARNING, line[: 4 * MAX_LINE_LENGTH].decode(errors="replace"), "no message on stdout: ")

    def close(self) -> None:
        """Nothing more is said."""
        if self._num_left_out:
            logger.warning("%s: %d more lines, which are not told", self._label, self._num_left_out)
            self._num_left_out = 0

    def _take(self, piece: bytes) -> None:
        self._line += piece[: 4 * MAX_LINE_LENGTH - len(self._line)]

    def _tell(self, level: int, line: str, what: str = "") -> None:
        text = "".join(char if char.isprintable() else " " for char in line).strip()
        if not text:
            return
        now = trio.current_time()
        if now - self._window_began >= WINDOW_SECONDS:
            self.close()
            self._window_began, self._num_lines = now, 0
        self._num_lines += 1
        if self._num_lines > MAX_LINES:
            self._num_left_out += 1
            return
        short = text if len(text) <= MAX_LINE_LENGTH else text[:MAX_LINE_LENGTH] + "…"
        logger.log(level, "%s: %s%s", self._label, what, short)
