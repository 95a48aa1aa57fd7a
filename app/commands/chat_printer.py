"""Where `trillm chat` writes: a terminal, which models must not command, or a file or pipe, which gets text only."""

from __future__ import annotations

from typing import TextIO, final

DIM, BOLD, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Changes of direction that go on until they are taken back: also over what is not the model's."""
CONTROLS = {c: None for c in (*range(32), *range(127, 160), *TURNS) if c not in (9, 10)}
"""Escape sequences begin with one of these, also in one byte. Tabs and line breaks may stay."""
WAITING = "…"


def harmless(text: str) -> str:
    """Without control characters: what is left of an escape sequence is but text."""
    return text.translate(CONTROLS)


@final
class Printer:
    """Of answers, and of what we say about them."""

    def __init__(self, out: TextIO, *, is_terminal: bool, has_styles: bool) -> None:
        self._out = out
        self._is_terminal = is_terminal
        self._has_styles = is_terminal and has_styles
        self._shows = ""
        """waiting, thought or text: what is at the end of the line."""
        self._is_line_open = False

    def wait(self) -> None:
        """Until something comes."""
        if self._has_styles:
            self._write(f"{DIM}{WAITING}{PLAIN}")
            self._shows = "waiting"

    def text(self, text: str) -> None:
        self._turn_to("text")
        self._write(harmless(text) if self._is_terminal else text)

    def thought(self, text: str) -> None:
        """Shown to people only."""
        if self._is_terminal:
            self._turn_to("thought")
            self._write(harmless(text))

    def call(self, name: str, arguments: str) -> None:
        self.note(f"calls {name}({arguments})")

    def note(self, text: str) -> None:
        """A line of our own, on a terminal."""
        self.end()
        if self._is_terminal:
            dim, plain = (DIM, PLAIN) if self._has_styles else ("", "")
            self._write(f"{dim}{harmless(text)}{plain}\n")

    def end(self) -> None:
        """Of what was written: what comes next is on a line of its own."""
        self._turn_to("")
        if self._is_line_open:
            self._write("\n")

    def gap(self) -> None:
        """Between one answer and the next question."""
        if self._is_terminal:
            self._write("\n")

    def _turn_to(self, kind: str) -> None:
        if self._shows == kind:
            return
        if self._shows == "waiting":
            self._out.write("\r\x1b[K")
            self._is_line_open = False
        if self._shows == "thought":
            self._out.write(PLAIN if self._has_styles else "")
            if kind == "text":
                self._out.write("\n\n")
        if kind == "thought" and self._has_styles:
            self._out.write(DIM)
        self._shows = kind

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._is_line_open = not text.endswith(("\n", f"\n{PLAIN}"))
