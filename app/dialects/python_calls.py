"""Reads a list of calls in Python's syntax with literal values. Used by app/dialects/pythonic.py."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NoReturn

NAME = r"[A-Za-z_][\w.\-]{0,255}"
_BLANK = re.compile(r"\s*")
_NAME = re.compile(NAME)
_STRING = re.compile(r"'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": "", "\\": "\\", "'": "'", '"': '"'}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_MAX_DEPTH = 50
_MAX_DIGITS = 300


class IncompleteError(ValueError):
    """The text ends before the list does."""


def python_calls(text: str) -> list[tuple[str, dict[str, object]]]:
    """[name(key=value, …), …] as names and arguments. Raises ValueError for anything else, positional arguments among
    it, and IncompleteError for what only is the beginning of such a list."""
    return _Reader(text).calls()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def calls(self) -> list[tuple[str, dict[str, object]]]:
        self._take("[")
        found = [self._call() for _ in self._items("]")]
        self._skip()
        if self._at < len(self._text) or not found:
            self._fail()
        return found

    def _call(self) -> tuple[str, dict[str, object]]:
        name = self._match(_NAME)
        self._take("(")
        arguments: dict[str, object] = {}
        for _ in self._items(")"):
            key = self._match(_NAME)
            self._take("=")
            arguments[key] = self._value()
        return name, arguments

    def _value(self) -> object:
        opener = self._peek()
        if opener in "[(":
            return [self._value() for _ in self._nested(opener, "]" if opener == "[" else ")")]
        if opener == "{":
            return dict(self._pair() for _ in self._nested("{", "}"))
        if opener in "'\"":
            return _unescaped(self._match(_STRING)[1:-1])
        if opener in "+-.0123456789":
            return _number(self._match(_NUMBER))
        word = self._match(_NAME)
        if word not in _WORDS:
            self._fail()
        return _WORDS[word]

    def _pair(self) -> tuple[str, object]:
        key = self._value()
        if not isinstance(key, str):
            self._fail()
        self._take(":")
        return key, self._value()

    def _nested(self, opener: str, closer: str) -> Iterator[None]:
        self._take(opener)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail()
        yield from self._items(closer)
        self._depth -= 1

    def _items(self, closer: str) -> Iterator[None]:
        """One turn for each item up to the closing bracket, which is taken; a comma may be the last."""
        while self._peek() != closer:
            yield
            if self._peek() != closer:
                self._take(",")
        self._at += 1

    def _peek(self) -> str:
        self._skip()
        if self._at == len(self._text):
            raise IncompleteError("the text ends too soon")
        return self._text[self._at]

    def _take(self, char: str) -> None:
        if self._peek() != char:
            self._fail()
        self._at += 1

    def _match(self, pattern: re.Pattern[str]) -> str:
        opener = self._peek()
        match = pattern.match(self._text, self._at)
        if match is None:
            if opener in "'\"":
                raise IncompleteError("a string has no end")
            self._fail()
        self._at = match.end()
        return match.group()

    def _skip(self) -> None:
        match = _BLANK.match(self._text, self._at)
        self._at = self._at if match is None else match.end()

    def _fail(self) -> NoReturn:
        raise ValueError(f"no list of calls, from character {self._at} on")


def _number(text: str) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number that is too long")
    found = int(text) if text.lstrip("+-").isdigit() else float(text)
    if math.isinf(found):
        raise ValueError("a number that JSON has no word for")
    return found


def _unescaped(text: str) -> str:
    """Escapes that Python does not know stay as they are."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_meant, text)


def _meant(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code is None:
        return _ESCAPED.get(match[4], match.group())
    value = int(code, 16)
    return chr(value) if value <= 0x10FFFF and not 0xD800 <= value <= 0xDFFF else match.group()
