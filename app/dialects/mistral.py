"""[TOOL_CALLS][{"name": …, "arguments": {…}}, …] and the newer [TOOL_CALLS]name{…} and [TOOL_CALLS]name[ARGS]{…}:
Mistral."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection

from app.dialects.call_text import CallText
from app.dialects.markers import Markers
from app.dialects.told_calls import ToldCalls
from app.parts import Part

OPEN = "[TOOL_CALLS]"
INNER = ("[ARGS]", "[CALL_ID]")
"""In a call's head; where they are control tokens, these are seen too."""
MARKERS = Markers((OPEN,))
_HEAD = re.compile(
    r"\s*(?:\[(?=\s*\{)|(?=\{)|(?P<name>[^\s\[\]{}]{1,256})\s*"
    r"(?:\[CALL_ID\]\s*[A-Za-z0-9_-]{1,64}\s*)?(?:\[ARGS\]\s*)?(?=\{))"
)
_LONGEST_HEAD = 512
_ALPHABET = string.ascii_letters + string.digits


def mistral_call_id() -> str:
    """Its templates take ids of nine letters and digits only."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


class MistralText(CallText):
    def __init__(self, names: Collection[str], hidden: Collection[str] = ()) -> None:
        super().__init__(ToldCalls(names, mistral_call_id), MARKERS, hidden)
        self._at_head = False
        """Right after the marker."""
        self._in_list = False

    def outside(self, text: str, at: int, final: bool) -> int:
        if self._in_list:
            return self._between(text, at)
        if self._at_head:
            return self._head(text, at, final)
        at, marker = self.plain(text, at, final)
        if marker is None:
            return at
        self._at_head = True
        return at + len(OPEN)

    def after_call(self, as_expected: bool) -> None:
        self._in_list = self._in_list and as_expected

    def end(self, cut: bool) -> list[Part]:
        parts = super().end(cut)
        if self._at_head and not cut:  # nothing followed the mark
            self.mark_up(OPEN)
        return [*parts, *self.told()]

    def _head(self, text: str, at: int, final: bool) -> int:
        """A list, an object, or a name and its arguments."""
        match = _HEAD.match(text, at, at + _LONGEST_HEAD)
        if match is None:
            return self._no_head(text, at, final)
        self._at_head = False
        name = match["name"]
        if name is None:
            self._in_list = match.group().endswith("[")
            self.open_call(OPEN + match.group())
        elif name in self._calls.names:
            self.open_call(OPEN + match.group(), name)
        else:
            self.mark_up(OPEN)
            self.content(match.group())
        return match.end()

    def _no_head(self, text: str, at: int, final: bool) -> int:
        """A head that is still short may become one."""
        if not final and len(text) - at < _LONGEST_HEAD:
            self.waits = True
            return at
        self._at_head = False
        if final and self.is_cut:
            return len(text)
        self.mark_up(OPEN)
        return at

    def _between(self, text: str, at: int) -> int:
        """In a list, after a call: one character."""
        char = text[at]
        if char.isspace():
            self.content(char)
            return at + 1
        self._in_list = char == ","
        if char not in ",]":
            return at
        self.drop_blanks()
        if char == ",":
            self.open_call(",")
        return at + 1
