"""A terminal that one thing draws on while others write lines to stderr: those come through a pipe, whole, to whoever
draws. Used by app/live_screen.py.

The children write there, too, and inherit the pipe. So somebody has to hear it until the last of them is gone, which
is why this is a thread and not a task of any nursery.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDERR = 2
CHUNK = 65536
MAX_LINE = 65536
"""Bytes without an end of line, from when on they count as one."""
FULL_SECONDS = 0.01
"""Until a terminal that takes nothing is tried again."""
DRAIN_SECONDS = 1.0
"""For what was written to come through."""
MARK = b"\x00trillm: so far\x00"
"""Ends a line, which others may have begun."""


@final
class TerminalFile(io.FileIO):
    """For bytes. Once the terminal has hung up they are lost, and nobody fails for it: a server that was left in the
    background goes on."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            while (written := super().write(data)) is None:  # some other program has made it non-blocking
                select.select([], [], [], FULL_SECONDS)  # a full one may be told as writable all the same
        except OSError:
            return memoryview(data).nbytes
        return written


@final
class Terminal:
    """Made by `open_terminal`. `write_line` may be set at any time; it is called in another thread."""

    def __init__(self, file: TextIO, reading: int) -> None:
        self.file = file
        """The terminal itself."""
        self.write_line: Callable[[str], None] = self._write
        self._reading = reading
        self._marked = threading.Event()
        self._is_released = False
        self._thread = threading.Thread(target=self._hear, name="stderr", daemon=True)
        self._thread.start()

    def _write(self, line: str) -> None:
        self.file.write(line + "\n")
        self.file.flush()

    def drain(self) -> None:
        """Until what this process has written so far has come through."""
        if not self._is_released:
            self._marked.clear()
            os.write(STDERR, MARK + b"\n")
            self._marked.wait(DRAIN_SECONDS)

    def release(self) -> None:
        """What this process writes goes to the terminal itself from now on; what it has written is there already.
        Idempotent."""
        self.drain()
        if not self._is_released:
            self._is_released = True
            os.dup2(self.file.fileno(), STDERR)
        self.write_line = self._write

    def close(self) -> None:
        """Once nobody has the pipe any more; somebody who goes on without us keeps it."""
        self.release()
        self._thread.join(DRAIN_SECONDS)
        if not self._thread.is_alive():
            self.file.close()

    def _hear(self) -> None:
        rest = b""
        with open(self._reading, "rb", buffering=0) as pipe:
            while data := pipe.read(CHUNK):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(line)
                if len(rest) >= MAX_LINE:
                    self._take(rest)
                    rest = b""
        if rest:
            self._take(rest)

    def _take(self, line: bytes) -> None:
        rest = line.removesuffix(MARK)
        if rest or rest == line:
            self.write_line(rest.decode(errors="backslashreplace").rstrip("\r"))
        if rest != line:
            self._marked.set()


@contextmanager
def open_terminal() -> Iterator[Terminal]:
    """stderr is a pipe until `release` is called, or this is left."""
    reading, writing = os.pipe()
    lasting = io.BufferedWriter(TerminalFile(os.dup(STDERR), "w"))
    file = io.TextIOWrapper(lasting, errors="backslashreplace", line_buffering=True)
    os.dup2(writing, STDERR)
    os.close(writing)
    terminal = Terminal(file, reading)
    try:
        yield terminal
    finally:
        terminal.close()
