"""A command on a pseudo-terminal, and what that shows: as bytes, and as the lines that are left on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

ROWS, COLUMNS = 40, 110
_CONTROL = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[\?25([hl])|\x1b\[[\d;]*m|\r|\n|[^\x1b\r\n]+")


@attrs.define
class OnTerminal:
    process: subprocess.Popen[bytes]
    screen: int
    shown: bytes = b""

    async def hear(self) -> None:
        async with trio.lowlevel.FdStream(os.dup(self.screen)) as stream:
            try:
                async for data in stream:
                    self.shown += data
            except trio.BrokenResourceError:
                pass  # nobody has it open any more

    async def until(self, text: str) -> None:
        while text not in self.text:
            assert self.process.poll() is None, self.text
            await trio.sleep(0.02)

    async def wait(self) -> int:
        while self.process.poll() is None:
            await trio.sleep(0.02)
        await trio.sleep(0.1)  # for the last of what it showed
        return self.process.returncode

    def press_ctrl_c(self) -> None:
        os.write(self.screen, b"\x03")

    @property
    def text(self) -> str:
        return self.shown.decode(errors="replace")

    def lines(self) -> list[str]:
        """What is left on it, as far as carriage returns, erased lines and moves upwards go."""
        lines, row, column = [""], 0, 0
        for found in _CONTROL.finditer(self.text):
            match found[2], found[0]:
                case "A", _:
                    row = max(0, row - int(found[1] or 1))
                case "K", _:
                    lines[row] = ""
                case None, "\r":
                    column = 0
                case None, "\n":
                    row += 1
                    lines += [""] * (row + 1 - len(lines))
                case None, text if not text.startswith("\x1b"):
                    lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
                    column += len(text)
        return [line.rstrip() for line in lines if line.strip()]

    @property
    def has_cursor(self) -> bool:
        return self.text.rfind("\x1b[?25l") <= self.text.rfind("\x1b[?25h")


@asynccontextmanager
async def open_on_terminal(*arguments: str, **environment: str) -> AsyncIterator[OnTerminal]:
    """It is the terminal's foreground process, so that Ctrl-C reaches it, and is ended afterwards."""
    screen, theirs = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        arguments,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kept | {"TERM": "xterm-256color", "TRILLM_RESPONSES_STORE": "false"} | environment,
        cwd="/",
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    running = OnTerminal(process, screen)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.hear)
            yield running
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with trio.move_on_after(10):
                    await running.wait()
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        process.wait()
        os.close(screen)
