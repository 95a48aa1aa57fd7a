"""Finds marks in text that comes in pieces. Used by the dialects."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import frozen


@frozen
class Found:
    start: int
    """Up to here the text is certain."""
    marker: str | None
    """What begins there; None if that is not known yet, or if it is the end of the text."""


class Markers:
    """Some strings to look for. What is found depends on the text only, not on how it is cut."""

    def __init__(self, markers: Iterable[str]) -> None:
        longest_first = sorted(set(markers), key=len, reverse=True)
        assert all(longest_first)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._beginnings = {marker[:i] for marker in longest_first for i in range(1, len(marker))}
        self._firsts = (
            re.compile("[" + "".join(re.escape(m[0]) for m in longest_first) + "]") if longest_first else None
        )
        self._longest = max(map(len, longest_first), default=0)

    def find(self, text: str, at: int, final: bool) -> Found:
        """The next marker from `at` on. What may yet become one is left for later, unless the text is `final`."""
        if self._pattern is None or self._firsts is None:
            return Found(len(text), None)
        match = self._pattern.search(text, at)
        held = len(text) if final else self._held_from(text, at)
        if match is not None and match.start() < held:
            return Found(match.start(), match.group())
        return Found(held, None)

    def _held_from(self, text: str, at: int) -> int:
        """Where the longest end of the text begins that is the beginning, and not the whole, of a marker."""
        assert self._firsts is not None
        for match in self._firsts.finditer(text, max(at, len(text) - self._longest + 1)):
            if text[match.start() :] in self._beginnings:
                return match.start()
        return len(text)
