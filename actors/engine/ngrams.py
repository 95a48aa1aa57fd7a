"""Where the n-grams of one sequence have occurred; grows with the sequence. Used by actors/engine/proposer.py."""

from __future__ import annotations

from typing import final


@final
class NgramIndex:
    """Of n-grams of these sizes, ascending, the latest occurrence that is followed by a token."""

    __slots__ = ("_num_seen", "_sizes", "_successors")

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._successors: dict[tuple[int, ...], int] = {}
        """Where the token after an n-gram stands."""
        self._num_seen = 0

    def find_earlier(self, token_ids: list[int]) -> int | None:
        """Where the token stands that followed the last tokens when they were there before; the longest n-gram that
        was counts. None if none was. Tokens once seen must not change."""
        for successor in range(max(self._num_seen, 1), len(token_ids)):
            for size in self._sizes:
                if size <= successor:
                    self._successors[tuple(token_ids[successor - size : successor])] = successor
        self._num_seen = len(token_ids)
        for size in reversed(self._sizes):
            found = self._successors.get(tuple(token_ids[-size:]))
            if found is not None:
                return found
        return None
