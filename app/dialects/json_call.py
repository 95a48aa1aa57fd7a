"""One call as a JSON object with its name and its arguments, read as it comes. Used by the dialects that write so."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable

from app.dialects.json_value import JsonValue, decoded, is_object
from app.dialects.told_calls import ToldCalls
from app.parts import CallPiece

MAX_HELD = 64 * 2**10
"""Characters that may be held back before it is known whether this is a call."""
_MAX_TAKEN = 4096
"""Characters at once, so that where it gives up does not depend on how the text is cut."""

_BLANK = re.compile(r"\s*")
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("type", "id", "index")
"""Keys that some models add."""


class State(enum.Enum):
    OPEN = enum.auto()
    DONE = enum.auto()
    REFUSED = enum.auto()
    """It is no call, and nothing of it has been told: `held` is its text."""
    BROKEN = enum.auto()
    """It was one when it began, and does not go on as one."""


class JsonCall:
    """{"name": …, "arguments": {…}}, also with "parameters", in any order; arguments may be an object, the same written
    as a string, null or missing. They are told as they are written, once the name is known to be one of the functions.
    """

    def __init__(self, calls: ToldCalls, name: str | None = None) -> None:
        """With a `name`, one of the functions, the object is the arguments."""
        self.state = State.OPEN
        self.begun = False
        self.pieces: list[CallPiece] = []
        """To be told; emptied by whoever tells them."""
        self._calls = calls
        self._held: list[str] = []
        self._num_held = 0
        self._is_bare = name is not None
        self._expect: Callable[[str, int], int] = self._value_begins if self._is_bare else self._opening
        self._value = JsonValue()
        self._key = "arguments" if self._is_bare else ""
        self._seen: set[str] = set()
        self._text: list[str] = []
        """Of the key or value that is being read, if it is held."""
        self._name = name
        self._arguments: str | None = None

    @property
    def held(self) -> str:
        """What it was, as long as it has not begun."""
        return "".join(self._held)

    def take(self, text: str, at: int) -> int:
        """Reads on from `at`; where it stopped. At least one character is taken, or the state is another."""
        limit = _MAX_TAKEN if self.begun else min(_MAX_TAKEN, MAX_HELD - self._num_held)
        if len(text) - at <= limit:
            return self._take(text, at)
        return at + self._take(text[at : at + limit], 0)

    def _take(self, text: str, at: int) -> int:
        start, was_begun = at, self.begun
        while at < len(text) and self.state is State.OPEN and self.begun == was_begun:
            at = self._expect(text, at)
        if not self.begun:
            self._held.append(text[start:at])
            self._num_held += at - start
            if self._num_held >= MAX_HELD and self.state is State.OPEN:
                self.state = State.REFUSED
        return at

    # ------------------------------------------------------------------ what may come next

    def _opening(self, text: str, at: int) -> int:
        return self._one_of(text, at, {"{": self._key_or_end})

    def _key_or_end(self, text: str, at: int) -> int:
        at = _after_blank(text, at)
        if text.startswith('"', at):
            return self._next_key(text, at)
        return self._one_of(text, at, {"}": None})

    def _next_key(self, text: str, at: int) -> int:
        at = _after_blank(text, at)
        if at < len(text) and text[at] != '"':
            return self._fail(at)
        self._value, self._text, self._expect = JsonValue(), [], self._in_key
        return at

    def _in_key(self, text: str, at: int) -> int:
        end = self._value.take(text, at)
        self._text.append(text[at:end])
        if self._value.complete:
            key = _string("".join(self._text))
            expected = key in _ARGUMENTS or key == "name" or key in _OTHERS or self.begun
            kind = "arguments" if key in _ARGUMENTS else key
            if key is None or kind is None or not expected or kind in self._seen:
                return self._fail(end)
            self._key = kind
            self._seen.add(kind)
            self._expect = self._colon
        return end

    def _colon(self, text: str, at: int) -> int:
        return self._one_of(text, at, {":": self._value_begins})

    def _value_begins(self, text: str, at: int) -> int:
        at = _after_blank(text, at)
        if at < len(text):
            self._value, self._text = JsonValue(), []
            self._expect = self._in_value
            if self._key == "arguments" and self._name is not None and text[at] == "{":
                self._begin()
                self._expect = self._in_arguments
        return at

    def _in_arguments(self, text: str, at: int) -> int:
        end = self._value.take(text, at)
        self.pieces.append(self._calls.more(text[at:end]))
        if self._value.broken:
            return self._fail(end)
        if self._value.complete and self._is_bare:
            return self._close(end)
        if self._value.complete:
            self._expect = self._comma_or_end
        return end

    def _in_value(self, text: str, at: int) -> int:
        end = self._value.take(text, at)
        if not self.begun:
            self._text.append(text[at:end])
        if self._value.broken:
            return self._fail(end)
        if self._value.complete:
            self._expect = self._comma_or_end
            if not self._keep("".join(self._text)):
                return self._fail(end)
        return end

    def _comma_or_end(self, text: str, at: int) -> int:
        return self._one_of(text, at, {",": self._next_key, "}": None})

    # ------------------------------------------------------------------

    def _one_of(self, text: str, at: int, choices: dict[str, Callable[[str, int], int] | None]) -> int:
        """Blanks, then one of these characters, with what comes after it; None is the end."""
        at = _after_blank(text, at)
        if at == len(text):
            return at
        if text[at] not in choices:
            return self._fail(at)
        following = choices[text[at]]
        if following is None:
            return self._close(at + 1)
        self._expect = following
        return at + 1

    def _keep(self, value: str) -> bool:
        """Takes a value in that was held; whether it can be part of a call."""
        if self._key == "name" and not self.begun:
            self._name = _string(value)
            return self._name in self._calls.names
        if self._key == "arguments":
            self._arguments = _arguments(value)
            return self._arguments is not None
        return True

    def _close(self, at: int) -> int:
        if not self.begun:
            if self._name is None:
                return self._fail(at)
            self._begin()
            self.pieces.append(self._calls.more(self._arguments or "{}"))
        self._calls.end()
        self.state = State.DONE
        return at

    def _begin(self) -> None:
        assert self._name is not None
        self.begun = True
        self.pieces.append(self._calls.begin(self._name))

    def _fail(self, at: int) -> int:
        self.state = State.BROKEN if self.begun else State.REFUSED
        return at


def _after_blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return at if match is None else match.end()


def _string(text: str) -> str | None:
    try:
        found = decoded(text)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _arguments(text: str) -> str | None:
    """The arguments as a JSON object, None if they are not what they should be."""
    if text == "null":
        return "{}"
    written = _string(text) if text.startswith('"') else text
    return written if written is not None and is_object(written) else None
