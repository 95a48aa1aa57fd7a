"""Text that is content, and what of it nobody should see."""

from __future__ import annotations

from collections.abc import Sequence

from app.choice_reader import TextParser
from app.dialects.markers import Markers
from app.parts import Content, Part


class PlainText:
    """A TextParser for answers without calls."""

    whole_calls: Sequence[bool] = ()

    def feed(self, text: str) -> list[Part]:
        return [Content(text)]

    def end(self, cut: bool) -> list[Part]:
        return []


class WithoutControlTokens:
    """Hands a text on to another parser without the control tokens that mean nothing to it: where some of them are
    marks of a dialect, the output handler spells all of them."""

    def __init__(self, control_tokens: Markers, inner: TextParser) -> None:
        self._tokens = control_tokens
        self._inner = inner
        self._rest = ""

    @property
    def whole_calls(self) -> Sequence[bool]:
        return self._inner.whole_calls

    def feed(self, text: str) -> list[Part]:
        return self._read(self._rest + text, final=False)

    def end(self, cut: bool) -> list[Part]:
        return [*self._read(self._rest, final=True), *self._inner.end(cut)]

    def _read(self, text: str, final: bool) -> list[Part]:
        parts: list[Part] = []
        at = 0
        while True:
            found = self._tokens.find(text, at, final)
            if found.start > at:
                parts += self._inner.feed(text[at : found.start])
            if found.marker is None:
                self._rest = text[found.start :]
                return parts
            at = found.start + len(found.marker)
