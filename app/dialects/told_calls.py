"""The calls of one choice as they are told: ids, places, and which of them are whole. Used by the dialects."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

from app.dialects.json_value import is_object
from app.parts import CallPiece


def call_id() -> str:
    return "call_" + secrets.token_hex(12)


class ToldCalls:
    """At most one is being told at a time."""

    def __init__(self, names: Collection[str], new_id: Callable[[], str] = call_id) -> None:
        """`names` are the functions that may be called."""
        self.names = frozenset(names)
        self.whole: list[bool] = []
        self._new_id = new_id
        self._arguments: list[str] = []

    def begin(self, name: str) -> CallPiece:
        self.whole.append(False)
        self._arguments = []
        return CallPiece(len(self.whole) - 1, "", self._new_id(), name)

    def more(self, arguments: str) -> CallPiece:
        self._arguments.append(arguments)
        return CallPiece(len(self.whole) - 1, arguments)

    def end(self) -> None:
        """The call's arguments are over; whole only if they are a valid object."""
        self.whole[-1] = is_object("".join(self._arguments))
        self._arguments = []
