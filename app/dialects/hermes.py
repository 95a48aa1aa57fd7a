"""<tool_call>{"name": …, "arguments": {…}}</tool_call>: Hermes, Qwen 2.5 and 3, SmolLM 3."""

from __future__ import annotations

from collections.abc import Collection

from app.dialects.call_text import CallText
from app.dialects.markers import Markers
from app.dialects.told_calls import ToldCalls

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MARKERS = Markers((OPEN, CLOSE))


class HermesText(CallText):
    """The closing mark may be missing."""

    def __init__(self, names: Collection[str], hidden: Collection[str] = ()) -> None:
        super().__init__(ToldCalls(names), MARKERS, hidden)
        self._may_close = False

    def outside(self, text: str, at: int, final: bool) -> int:
        if self._may_close and self.is_cut and CLOSE.startswith(text[at:].strip()):
            return len(text)  # the mark is cut, not the call
        at, marker = self.plain(text, at, final)
        if self.told_text:
            self._may_close = False
        if marker is None:
            return at
        if marker == OPEN:
            self.open_call(OPEN)
        elif self._may_close:
            self._may_close = False
            self.drop_blanks()
        else:
            self.mark_up(CLOSE)
        return at + len(marker)

    def after_call(self, as_expected: bool) -> None:
        self._may_close = as_expected
