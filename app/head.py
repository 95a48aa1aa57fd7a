"""What every chunk of one response repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from attrs import frozen
from msgspec import UNSET, UnsetType

from app.answer import Answer
from app.schemas.usage import Usage

C = TypeVar("C")


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

    def of(self, kind: Callable[..., C], **fields: object) -> C:
        """A body or chunk of this kind: what all of them repeat, and these fields."""
        return kind(id=self.id, created=self.created, model=self.model, system_fingerprint=self.fingerprint, **fields)

    def usage(self, answer: Answer) -> Usage | UnsetType | None:
        """Of a chunk that has choices."""
        if self.continuous_usage:
            return answer.usage()
        return None if self.include_usage else UNSET
