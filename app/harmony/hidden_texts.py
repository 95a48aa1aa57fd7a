"""Keeps long texts out of openai-harmony, whose encoder takes quadratic time over a long run without a break.

A private-use character that occurs nowhere else stands for such a text while the library renders. Afterwards the
checkpoint's own tokeniser, which has the same vocabulary, encodes what is between two control tokens in one go.
"""

from __future__ import annotations

import re

from protocol.errors import BadRequestError

MAX_LENGTH = 1000
"""Characters of a text that goes through the library as it is."""
MAX_TOTAL = 100_000
"""Of all of them together: the library holds the interpreter lock all the while."""
_RUN = re.compile(r"\S{64,}|[\s/]{64,}")
"""Slashes too, since lines of a tool's description begin with two of them."""
_PRIVATE_USE = range(0xF0000, 0xFFFFD)


class HiddenTexts:
    """Of one prompt."""

    def __init__(self, whole: str) -> None:
        """`whole` has every character that the prompt has."""
        used = frozenset[str]() if whole.isascii() else frozenset(whole)
        self._free = (char for char in map(chr, _PRIVATE_USE) if char not in used)
        self.texts: dict[str, str] = {}
        """Character to the text it stands for. Empty in the usual case."""
        self._num_shown = 0

    def text(self, text: str) -> str:
        """For what the library takes over as it is."""
        self._num_shown += len(text)
        return self._hide(text) if len(text) > MAX_LENGTH or self._num_shown > MAX_TOTAL else self.runs(text)

    def runs(self, text: str) -> str:
        """For what the library may indent or comment out: its lines stay, but for many blank ones."""
        return _RUN.sub(lambda found: self._hide(found[0]), text)

    def tree(self, value: object) -> object:
        """`runs` of every string in dicts and lists, keys included."""
        if isinstance(value, str):
            return self.runs(value)
        if isinstance(value, dict):
            return {self.tree(key): self.tree(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        return value

    def _hide(self, text: str) -> str:
        try:
            standing = next(self._free)
        except StopIteration:
            raise BadRequestError("The messages and tools have too many long texts", param="messages") from None
        self.texts[standing] = text
        return standing
