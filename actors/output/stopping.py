"""Finds stop strings in text that arrives in pieces, in linear time (Aho and Corasick's automaton).

The output processor has one matcher for each request with stop strings. What it releases and where it stops depends on
the text only, not on the pieces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

ROOT = 0


class _Automaton:
    """A trie of the stop strings whose node, after any text, is the longest suffix of it that is in the trie."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.children: list[dict[str, int]] = [{}]
        self.failure: list[int] = [ROOT]
        self.match: list[int | None] = [None]
        """The first of the stop strings, in the order given, that is complete at this node."""
        self.withheld: list[int] = [0]
        """Length of the longest suffix here that is a beginning, and not the whole, of some stop string."""
        depth = [0]
        for order, stop in enumerate(stops):
            node = ROOT
            for character in stop:
                if character not in self.children[node]:
                    self.children[node][character] = len(self.children)
                    self.children.append({})
                    self.failure.append(ROOT)
                    self.match.append(None)
                    self.withheld.append(0)
                    depth.append(depth[node] + 1)
                node = self.children[node][character]
            if self.match[node] is None:
                self.match[node] = order
        self._link(depth)

    def _link(self, depth: list[int]) -> None:
        queue = deque(self.children[ROOT].values())
        for node in queue:
            self.withheld[node] = depth[node] if self.children[node] else 0
        while queue:
            node = queue.popleft()
            for character, child in self.children[node].items():
                fallback = self.step(self.failure[node], character)
                self.failure[child] = fallback
                found = [order for order in (self.match[child], self.match[fallback]) if order is not None]
                self.match[child] = min(found, default=None)
                self.withheld[child] = depth[child] if self.children[child] else self.withheld[fallback]
                queue.append(child)

    def step(self, node: int, character: str) -> int:
        while True:
            following = self.children[node].get(character)
            if following is not None:
                return following
            if node == ROOT:
                return ROOT
            node = self.failure[node]


class StopMatcher:
    """Passes text on until a stop string is complete.

    The string that is complete first wins; of several that end at the same character, the first of the list. Only text
    that may yet turn out to be the beginning of a stop string is withheld, and nothing if the string is to be included.
    """

    def __init__(self, stops: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        assert stops
        assert all(stops)
        self._stops = list(stops)
        self._include = include_stop_str_in_output
        self._automaton = _Automaton(stops)
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._node = ROOT
        self._pieces: deque[str] = deque()
        """Text not yet released: `_length` characters, from `_start` of the first piece on."""
        self._start = 0
        self._length = 0

    def feed(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """The text that may go out now, and the stop string if one was completed: then the rest of `text` is dropped,
        and this matcher is done. Stop strings that are completed while not `armed` do not count.
        """
        if self._node == ROOT and self._first_characters.isdisjoint(text):
            return text, None
        step, match = self._automaton.step, self._automaton.match
        node = self._node
        for index, character in enumerate(text):
            node = step(node, character)
            order = match[node]
            if order is not None and armed:
                return self._stop(text[: index + 1], self._stops[order])
        self._node = node
        self._append(text)
        return self._release(self._length - (0 if self._include else self._automaton.withheld[node])), None

    def flush(self) -> str:
        """The text is over: what was withheld."""
        self._node = ROOT
        return self._release(self._length)

    def _stop(self, text: str, stop: str) -> tuple[str, str]:
        self._append(text)
        released = self._release(self._length - (0 if self._include else len(stop)))
        return released, stop

    def _append(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._length += len(text)

    def _release(self, count: int) -> str:
        """Take `count` characters from the front. A piece is not copied again for each part that is taken off it."""
        assert 0 <= count <= self._length
        self._length -= count
        parts = []
        while count:
            piece = self._pieces[0]
            part = piece[self._start : self._start + count]
            parts.append(part)
            count -= len(part)
            self._start += len(part)
            if self._start == len(piece):
                self._pieces.popleft()
                self._start = 0
        return "".join(parts)
