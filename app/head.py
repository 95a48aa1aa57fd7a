"""What every chunk of one response repeats."""

from __future__ import annotations

from attrs import frozen
from msgspec import UNSET, UnsetType

from app.answer import Answer
from app.schemas.usage import Usage


@frozen
class Head:
    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool = False
    """Streams end with a chunk that carries only the usage; the other chunks then carry null."""
    continuous_usage: bool = False
    """Every chunk carries the usage so far."""

    def usage(self, answer: Answer) -> Usage | UnsetType | None:
        """Of a chunk that has choices."""
        if self.continuous_usage:
            return answer.usage()
        return None if self.include_usage else UNSET
