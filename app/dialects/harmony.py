"""Harmony, which gpt-oss writes: messages on channels, for thoughts (analysis), calls (commentary to a function) and
the answer (final).

Read from the text with its control tokens spelled out, so that it needs no vocabulary but the model's own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from app.dialects.markers import Markers
from app.dialects.told_calls import ToldCalls
from app.parts import Content, Part, Reasoning

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
MARKERS = Markers(MARKS)
MAX_HEADER = 512
"""Characters; no honest header has as many."""
CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_HEADER_TEXT = re.compile(r"\s*(?:assistant)?\s*(?:to=\S{0,300}(?:\s+\w{0,16})?\s*)?")


class HarmonyText:
    """A TextParser that starts where the prompt ends: in a header, or inside a message that is to be continued.

    A text without any header, as a confused model writes it, is content. So is a message to a function that is not
    among the tools, or that is not written as an object.
    """

    def __init__(self, names: Collection[str], prompt_end: str) -> None:
        """`prompt_end`: what the prompt has after its last <|start|>, which the text continues."""
        self._calls = ToldCalls(names)
        self._header: str | None = ""
        """What there is of it; None inside a message."""
        self._channel = "final"
        self._function: str | None = None
        """Of a call whose object has not begun."""
        self._in_call = False
        self._blanks: list[str] = []
        self._rest = ""
        self._num_prompted = 0
        self.feed(prompt_end)
        self._calls = ToldCalls(names)
        self._in_call, self._function = False, None
        self._num_prompted = len(self._header or "")
        """Of the header's characters, those that the prompt has."""

    @property
    def whole_calls(self) -> Sequence[bool]:
        return self._calls.whole

    def feed(self, text: str) -> list[Part]:
        return self._read(self._rest + text, final=False)

    def end(self, cut: bool) -> list[Part]:
        """A message that the model ended is whole: the control token that ends the text is not part of it."""
        parts = self._read(self._rest, final=True)
        if self._header is None:
            return parts if cut else [*parts, *self._close()]
        has_marks = CHANNEL in self._header or CONSTRAIN in self._header
        if not has_marks and self._header.strip() not in ("", "assistant"):
            parts.append(Content(self._header[self._num_prompted :]))
        return parts

    def _read(self, text: str, final: bool) -> list[Part]:
        parts: list[Part] = []
        at = 0
        while True:
            found = MARKERS.find(text, at, final)
            parts += self._text(text[at : found.start])
            if found.marker is None:
                self._rest = text[found.start :]
                return parts
            parts += self._marked(found.marker)
            at = found.start + len(found.marker)

    def _text(self, text: str) -> list[Part]:
        if not text:
            return []
        if self._header is None:
            return self._body(text)
        self._header += text
        if len(self._header) <= MAX_HEADER and (CHANNEL in self._header or may_be_header(self._header)):
            return []
        no_header, self._header = self._header[self._num_prompted :], None
        self._channel, self._function = "final", None
        return self._body(no_header)

    def _marked(self, marker: str) -> list[Part]:
        if self._header is not None and marker in (CHANNEL, CONSTRAIN):
            self._header += marker
            return []
        if marker == MESSAGE:
            if self._header is not None:
                self._open(self._header)
            return []
        if marker == CONSTRAIN:
            return []
        closed = self._close() if self._header is None else []
        self._header = CHANNEL if marker == CHANNEL else ""
        self._num_prompted = 0
        return closed

    def _open(self, header: str) -> None:
        channel, recipient = CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        self._channel = "final" if channel is None else channel[1]
        named = recipient is not None and recipient[1] in self._calls.names
        self._function = recipient[1] if named and recipient is not None else None
        self._header = None
        self._blanks = []

    def _body(self, text: str) -> list[Part]:
        if self._in_call:
            return [self._calls.more(text)]
        if self._function is None:
            return [Reasoning(text) if self._channel == "analysis" else Content(text)]
        if text.isspace():
            self._blanks.append(text)
            return []
        function, self._function = self._function, None
        if not text.lstrip().startswith("{"):
            return self._body("".join(self._blanks) + text)
        self._in_call = True
        return [self._calls.begin(function), self._calls.more(text.lstrip())]

    def _close(self) -> list[Part]:
        """The message is over. A call without any arguments is one with none."""
        parts: list[Part] = []
        if self._function is not None:
            parts = [self._calls.begin(self._function), self._calls.more("{}")]
        if self._in_call or self._function is not None:
            self._calls.end()
        self._in_call, self._function = False, None
        return parts


def may_be_header(text: str) -> bool:
    """Whether a text without marks is what stands before the first one, or the beginning of that."""
    begun = text.strip()
    rest = begun.removeprefix("assistant").strip()
    return "assistant".startswith(begun) or "to=".startswith(rest) or _HEADER_TEXT.fullmatch(text) is not None
