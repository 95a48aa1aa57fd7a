"""<think>…</think> before the answer: DeepSeek R1, Qwen 3 and many others."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from app.choice_reader import TextParser
from app.dialects.markers import Markers
from app.parts import Part, Reasoning

OPEN, CLOSE = "<think>", "</think>"
_MARKERS = Markers((CLOSE,))
_MAX_BLANKS = 64
_BEGINNING = re.compile(r"\s{0,64}" + re.escape(OPEN))
_MAYBE = re.compile(r"\s{0,64}(?:<(?:t(?:h(?:i(?:n(?:k)?)?)?)?)?)?")


class Thinking(enum.Enum):
    """Where the prompt leaves the model."""

    OPEN = enum.auto()
    """Inside its thoughts."""
    CLOSED = enum.auto()
    """After them: it does not think."""
    UNSAID = enum.auto()
    """It may begin with them."""


def thinking_after(prompt_end: str) -> Thinking:
    """By the last mark in the end of the rendered prompt."""
    prompt_end = prompt_end.rstrip()
    if prompt_end.endswith(OPEN):
        return Thinking.OPEN
    return Thinking.CLOSED if prompt_end.endswith(CLOSE) else Thinking.UNSAID


def thinking_in(begun: str) -> Thinking:
    """By the marks in an answer that is to be continued."""
    opened, closed = begun.rfind(OPEN), begun.rfind(CLOSE)
    if opened > closed:
        return Thinking.OPEN
    return Thinking.CLOSED if closed >= 0 or begun.strip() else Thinking.UNSAID


class ThinkText:
    """A TextParser: thoughts, then what another parser makes of the rest. Marks after that are text like any other.

    Thoughts of nothing but blanks are left out.
    """

    def __init__(self, where: Thinking, inner: TextParser) -> None:
        self._inner = inner
        self._inside = where is Thinking.OPEN
        self._at_beginning = where is not Thinking.CLOSED
        self._rest = ""
        self._blanks: list[str] = []
        self._has_thought = False

    @property
    def whole_calls(self) -> Sequence[bool]:
        return self._inner.whole_calls

    def feed(self, text: str) -> list[Part]:
        return self._read(self._rest + text, final=False)

    def end(self, cut: bool) -> list[Part]:
        return [*self._read(self._rest, final=True), *self._inner.end(cut)]

    def _read(self, text: str, final: bool) -> list[Part]:
        self._rest = ""
        if self._at_beginning:
            if not final and _MAYBE.fullmatch(text) and len(text) < _MAX_BLANKS + len(OPEN):
                self._rest = text
                return []
            self._at_beginning = False
            if begun := _BEGINNING.match(text):
                self._inside = True
                text = text[begun.end() :]
        if not self._inside:
            return list(self._inner.feed(text)) if text else []
        found = _MARKERS.find(text, 0, final)
        parts = self._thoughts(text[: found.start])
        if found.marker is None:
            self._rest = text[found.start :]
            return parts
        self._inside = False
        rest = text[found.start + len(CLOSE) :]
        return [*parts, *(self._inner.feed(rest) if rest else [])]

    def _thoughts(self, text: str) -> list[Part]:
        if not text:
            return []
        if not self._has_thought and text.isspace():
            self._blanks.append(text)
            return []
        blanks, self._blanks = self._blanks, []
        self._has_thought = True
        return [Reasoning(each) for each in (*blanks, text)]
