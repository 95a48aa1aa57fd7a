"""Finds the end of a JSON value in text that comes in pieces. Used by the dialects and by app/call_reader.py."""

from __future__ import annotations

import re

import msgspec

from app.body import nests_within

_MAX_DEPTH = 100
_STRING_STEP = re.compile(r'["\\]')
_BRACKET_STEP = re.compile(r'["\[\]{}]')
_SCALAR_END = re.compile(r"[\s,\]}]")
_CLOSERS = {"{": "}", "[": "]"}


class JsonValue:
    """Follows brackets and strings only: whether it is valid is seen once it is whole."""

    def __init__(self) -> None:
        self.first = ""
        """Its first character, once that is known."""
        self.complete = False
        self.broken = False
        """Set if what came cannot be a value: another one's closing bracket."""
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False

    def take(self, text: str, at: int) -> int:
        """Reads on from `at`, where the value begins or goes on; where it ends in this text."""
        while at < len(text) and not (self.complete or self.broken):
            if not self.first:
                at = self._begin(text[at], at)
            elif self._escaped:
                self._escaped = False
                at += 1
            elif self._in_string:
                at = self._in(text, at)
            elif self._closers:
                at = self._between(text, at)
            else:
                end = _SCALAR_END.search(text, at)
                self.complete = end is not None
                at = len(text) if end is None else end.start()
        return at

    def _begin(self, char: str, at: int) -> int:
        self.first = char
        if char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        elif char == '"':
            self._in_string = True
        elif char not in "-0123456789tfn":
            self.broken = True
            return at
        return at + 1

    def _in(self, text: str, at: int) -> int:
        step = _STRING_STEP.search(text, at)
        if step is None:
            return len(text)
        self._escaped = step.group() == "\\"
        self._in_string = self._escaped
        self.complete = not self._in_string and not self._closers
        return step.end()

    def _between(self, text: str, at: int) -> int:
        step = _BRACKET_STEP.search(text, at)
        if step is None:
            return len(text)
        char = step.group()
        if char == '"':
            self._in_string = True
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        elif self._closers.pop() == char:
            self.complete = not self._closers
        else:
            self.broken = True
            return step.start()
        return step.end()


def decoded(text: str) -> object:
    """The value that a text is. Raises ValueError for what is no JSON, or nested too deep."""
    data = text.encode()
    if not nests_within(data, _MAX_DEPTH):
        raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
    return msgspec.json.decode(data)


def is_object(text: str) -> bool:
    """Whether a text is a valid JSON object, as the arguments of a call have to be."""
    try:
        return isinstance(decoded(text), dict)
    except ValueError:
        return False
