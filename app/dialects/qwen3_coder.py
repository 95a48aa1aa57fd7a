"""<tool_call><function=name><parameter=key>value</parameter></function></tool_call>: Qwen 3 Coder."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from app.dialects.call_text import CallText
from app.dialects.json_value import decoded
from app.dialects.markers import Markers
from app.dialects.told_calls import ToldCalls
from app.parts import Part

OPEN, CLOSE, FUNCTION = "<tool_call>", "</tool_call>", "<function="
_END_FUNCTION, _PARAMETER, _END_PARAMETER = "</function>", "<parameter=", "</parameter>"
MARKERS = Markers((OPEN, CLOSE, FUNCTION))
_VALUE_MARKERS = Markers((_END_PARAMETER,))
_IN_FUNCTION = (_PARAMETER, _END_FUNCTION, CLOSE)
_BLANKS = re.compile(r"\s*")
_MAX_NAME = 256
"""Characters; app/calls.py takes no function with a longer one."""
_MAX_BLANKS = 64
_WORDS = {"True": "true", "False": "false", "None": "null"}


class _In(enum.Enum):
    TEXT = enum.auto()
    NAME = enum.auto()
    FUNCTION = enum.auto()
    KEY = enum.auto()
    VALUE = enum.auto()


class Qwen3CoderText(CallText):
    """Strings are told as they come; what a function's schema does not call a string is told once it is whole, as the
    JSON that it is, or as a string if it is none. Text where a parameter should be ends a call; that is not whole.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any] | None], hidden: Collection[str] = ()) -> None:
        """The functions' names, with the schemas of their parameters."""
        super().__init__(ToldCalls(tools), MARKERS, hidden)
        self._tools = tools
        self._where = _In.TEXT
        self._opened = ""
        """Mark-up of a call whose name is not known yet."""
        self._may_close = False
        self._name = ""
        self._keys: set[str] = set()
        self._value = _Value(is_string=True)

    def after_call(self, as_expected: bool) -> None:
        self._may_close = as_expected
        self._where = _In.TEXT
        self.told_text = False

    def end(self, cut: bool) -> list[Part]:
        parts = super().end(cut)
        if not cut:  # nothing followed the mark
            self._give_up("")
        return [*parts, *self.told()]

    def outside(self, text: str, at: int, final: bool) -> int:
        match self._where:
            case _In.TEXT:
                return self._in_opened(text, at, final) if self._opened else self._in_text(text, at, final)
            case _In.NAME:
                return self._in_name(text, at, final)
            case _In.FUNCTION:
                return self._in_function(text, at, final)
            case _In.KEY:
                return self._in_key(text, at, final)
            case _In.VALUE:
                return self._in_value(text, at, final)

    def _in_text(self, text: str, at: int, final: bool) -> int:
        if self._may_close and self.is_cut and CLOSE.startswith(text[at:].strip()):
            return len(text)  # the mark is cut, not the call
        at, marker = self.plain(text, at, final)
        self._may_close = self._may_close and not self.told_text
        if marker is None:
            return at
        if marker != CLOSE:
            self._opened = marker
            self._where = _In.NAME if marker == FUNCTION else _In.TEXT
        elif self._may_close:
            self._may_close = False
            self.drop_blanks()
        else:
            self.mark_up(CLOSE)
        return at + len(marker)

    def _in_opened(self, text: str, at: int, final: bool) -> int:
        """After <tool_call>: blanks, then the function."""
        blanks = _run(text, at)
        if blanks <= _MAX_BLANKS and text.startswith(FUNCTION, at + blanks):
            self._opened += text[at : at + blanks] + FUNCTION
            self._where = _In.NAME
            return at + blanks + len(FUNCTION)
        if blanks <= _MAX_BLANKS and FUNCTION.startswith(text[at + blanks : at + blanks + len(FUNCTION)]):
            return self._wait(text, at, final)
        self._give_up("")
        return at

    def _in_name(self, text: str, at: int, final: bool) -> int:
        end = text.find(">", at, at + _MAX_NAME + 1)
        if end < 0 and len(text) - at <= _MAX_NAME:
            return self._wait(text, at, final)
        name = text[at:end] if end >= 0 else None
        if name is None or name not in self._calls.names:
            self._give_up("" if name is None else name + ">")
            return at if name is None else end + 1
        self._name, self._keys, self._opened = name, set(), ""
        self.drop_blanks()
        self._tell(None)
        self._where = _In.FUNCTION
        return end + 1

    def _in_function(self, text: str, at: int, final: bool) -> int:
        at += _run(text, at)
        rest = text[at : at + len(CLOSE)]
        mark = next((mark for mark in _IN_FUNCTION if text.startswith(mark, at)), None)
        if mark is None and any(mark.startswith(rest) for mark in _IN_FUNCTION):
            self.waits = not final
            return len(text) if final else at
        if mark == _PARAMETER:
            self._where = _In.KEY
        else:
            if mark is not None:
                self._tell("}")
                self._calls.end()
            self.after_call(mark == _END_FUNCTION)
        return at + len(mark or "")

    def _in_key(self, text: str, at: int, final: bool) -> int:
        end = text.find(">", at, at + _MAX_NAME + 1)
        if end < 0 and len(text) - at <= _MAX_NAME:
            self.waits = not final
            return len(text) if final else at
        key = text[at:end] if end >= 0 else None
        if key is None or key in self._keys:
            self.after_call(False)
            return at if key is None else end + 1
        self._value = _Value(_is_string(self._tools[self._name], key))
        self._tell((", " if self._keys else "") + _written(key) + ": " + self._value.begin())
        self._keys.add(key)
        self._where = _In.VALUE
        return end + 1

    def _in_value(self, text: str, at: int, final: bool) -> int:
        found = _VALUE_MARKERS.find(text, at, final)
        self._tell(self._value.more(text[at : found.start]))
        self.waits = found.marker is None
        if found.marker is None:
            return found.start
        self._tell(self._value.end())
        self._where = _In.FUNCTION
        return found.start + len(found.marker)

    def _tell(self, arguments: str | None) -> None:
        """None begins the call."""
        if arguments is None:
            self.tell([self._calls.begin(self._name), self._calls.more("{")])
        elif arguments:
            self.tell([self._calls.more(arguments)])

    def _wait(self, text: str, at: int, final: bool) -> int:
        """What is held back until its end is there; the end of all text decides it."""
        self.waits = not final
        if not final:
            return at
        if self.is_cut:
            self._opened = ""
        else:
            self._give_up(text[at:])
        return len(text)

    def _give_up(self, more: str) -> None:
        """It is no call."""
        opened, self._opened = self._opened + more, ""
        self._where = _In.TEXT if self._where is _In.NAME else self._where
        for mark in self._hidden:
            opened = opened.replace(mark, "")
        self.content(opened)


class _Value:
    """One parameter's text on its way to JSON. A line break at either end belongs to the mark-up."""

    def __init__(self, is_string: bool) -> None:
        self._is_string = is_string
        self._at_beginning = True
        self._newline = ""
        self._held: list[str] = []

    def begin(self) -> str:
        return '"' if self._is_string else ""

    def more(self, text: str) -> str:
        if not text:
            return ""
        if self._at_beginning:
            text = text.removeprefix("\n")
            self._at_beginning = False
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        if self._is_string:
            return _written(text)[1:-1]
        self._held.append(text)
        return ""

    def end(self) -> str:
        if self._is_string:
            return '"'
        text = "".join(self._held)
        bare = _WORDS.get(text.strip(), text.strip())
        try:
            decoded(bare)
        except ValueError:
            return _written(text)
        return bare


def _is_string(schema: Mapping[str, Any] | None, key: str) -> bool:
    """Also where a schema says nothing of a parameter."""
    properties = (schema or {}).get("properties")
    found = properties.get(key) if isinstance(properties, dict) else None
    return not isinstance(found, dict) or found.get("type") == "string"


def _written(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _run(text: str, at: int) -> int:
    """How many blanks there are."""
    match = _BLANKS.match(text, at)
    return 0 if match is None else match.end() - at
