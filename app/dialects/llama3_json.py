"""{"name": …, "parameters": {…}} as the whole answer or after <|python_tag|>, several joined by semicolons: Llama 3.1
and later."""

from __future__ import annotations

from collections.abc import Collection

from app.dialects.call_text import CallText
from app.dialects.markers import Markers
from app.dialects.told_calls import ToldCalls

TAG = "<|python_tag|>"
MARKERS = Markers((TAG,))


class LlamaText(CallText):
    """An object counts as a call at the beginning, after the tag and after another call, nowhere else."""

    def __init__(self, names: Collection[str], hidden: Collection[str] = ()) -> None:
        super().__init__(ToldCalls(names), MARKERS, hidden)
        self._may_begin = True

    def outside(self, text: str, at: int, final: bool) -> int:
        if self._may_begin:
            return self._beginning(text, at)
        at, marker = self.plain(text, at, final)
        if marker is None:
            return at
        self.open_call(TAG)
        return at + len(TAG)

    def after_call(self, as_expected: bool) -> None:
        self._may_begin = as_expected

    def _beginning(self, text: str, at: int) -> int:
        """One character: a semicolon only between calls."""
        char = text[at]
        if char == "{":
            self._may_begin = False
            self.open_call("")
        elif char.isspace():
            self.content(char)
            return at + 1
        elif char == ";" and self.whole_calls:
            self.drop_blanks()
            return at + 1
        else:
            self._may_begin = False
        return at
