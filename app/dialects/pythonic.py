"""[name(argument=value, …), …] as the whole answer: Llama 3.2 (small) and 4, and others that were taught Python."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from app.dialects.json_call import MAX_HELD
from app.dialects.python_calls import NAME, IncompleteError, python_calls
from app.dialects.told_calls import ToldCalls
from app.parts import Content, Part

_BEGINNING = re.compile(rf"\s{{0,64}}\[\s{{0,64}}(?P<name>{NAME})\(")
_MAYBE = re.compile(r"\s{0,64}(?:\[\s{0,64}(?:[A-Za-z_][\w.\-]{0,255})?)?")


class PythonicText:
    """A TextParser. A list that begins with one of the functions is held back to its end: its values can only be told
    as JSON once they are whole. Whatever else it turns out to be is content, as is all that does not fit into 64 K
    characters."""

    def __init__(self, names: Collection[str]) -> None:
        self._calls = ToldCalls(names)
        self._held: list[str] | None = []
        """What may be such a list; None once it cannot be one."""
        self._num_held = 0
        self._has_begun = False

    @property
    def whole_calls(self) -> Sequence[bool]:
        return self._calls.whole

    def feed(self, text: str) -> list[Part]:
        if self._held is None:
            return [Content(text)]
        self._held.append(text)
        self._num_held += len(text)
        if self._num_held > MAX_HELD or not (self._has_begun or self._may_begin("".join(self._held))):
            return self._give_up()
        return []

    def end(self, cut: bool) -> list[Part]:
        if self._held is None:
            return []
        try:
            found = python_calls("".join(self._held))
        except IncompleteError:
            return [] if cut and self._has_begun else self._give_up()
        except ValueError:
            return self._give_up()
        if any(name not in self._calls.names for name, _ in found):
            return self._give_up()
        parts: list[Part] = []
        for name, arguments in found:
            parts += [self._calls.begin(name), self._calls.more(json.dumps(arguments, ensure_ascii=False))]
            self._calls.end()
        return parts

    def _may_begin(self, text: str) -> bool:
        """Of a text that is still short."""
        begun = _BEGINNING.match(text)
        self._has_begun = begun is not None and begun["name"] in self._calls.names
        return self._has_begun or (begun is None and _MAYBE.fullmatch(text) is not None)

    def _give_up(self) -> list[Part]:
        text = "".join(self._held or ())
        self._held = None
        return [Content(text)] if text else []
