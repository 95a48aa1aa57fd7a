"""Tool calls out of the text that a forced call's grammar made the model write, as it comes.

The grammar (app/calls.py) fixes the text's shape, so that reading it needs no guesses. A TextParser
(app/choice_reader.py), made by app/chat.py.
"""

from __future__ import annotations

import json
import re
import secrets

from attrs import define

from app.calls import Calls
from app.choice_reader import merged
from app.dialects.json_value import JsonValue
from app.parts import CallPiece, Part

_BEGIN = re.compile(r'\s*[\[,]?\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"parameters"\s*:\s*', re.DOTALL)


@define
class ReadCall:
    """A call as far as it has been read."""

    id: str
    name: str
    arguments: str = ""


class CallReader:
    """Reads one choice's text as it comes. Pure."""

    def __init__(self, forced: Calls) -> None:
        self._named = forced.name
        self.calls: list[ReadCall] = []
        self._pending = ""
        """Text before a call whose name has not come yet."""
        self._value = JsonValue()
        self._inside = False
        self._whole = 0
        """Calls whose arguments are complete."""

    @property
    def whole_calls(self) -> list[bool]:
        return [True] * self._whole + [False] * (len(self.calls) - self._whole)

    def feed(self, text: str) -> list[Part]:
        """What the text adds to the calls."""
        pieces: list[Part] = []
        while text:
            if self._inside:
                if not self._value.first:
                    text = text.lstrip()
                taken = self._value.take(text, 0)
                pieces.append(self._add(text[:taken]))
                text = text[taken:]
                if self._value.broken:
                    break  # no grammar lets this be
                if self._value.complete:
                    self._inside = False
                    self._whole += 1
                    self._pending = ""
            elif self._named is not None:
                if self.calls:
                    break  # blanks after the arguments
                pieces.append(self._start(self._named))
            else:
                self._pending += text
                text = ""
                self._pending = self._pending.lstrip("}") if self.calls else self._pending
                if match := _BEGIN.match(self._pending):
                    pieces.append(self._start(json.loads(match["name"])))
                    text = self._pending[match.end() :]
        return merged(pieces)

    def end(self, cut: bool) -> list[Part]:
        """Nothing is held back but what is no part of a call."""
        return []

    def _start(self, name: str) -> CallPiece:
        call = ReadCall("call_" + secrets.token_hex(12), name)
        self.calls.append(call)
        self._inside = True
        self._value = JsonValue()
        return CallPiece(len(self.calls) - 1, "", call.id, name)

    def _add(self, arguments: str) -> CallPiece:
        self.calls[-1].arguments += arguments
        return CallPiece(len(self.calls) - 1, arguments)
