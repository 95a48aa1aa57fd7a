"""What a choice's answer consists of, as it comes: read from a model's text by a ChoiceReader, told by a writer."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from protocol.messages import RequestOutput


@frozen
class Reasoning:
    """Thoughts before the answer."""

    text: str


@frozen
class Content:
    """The answer itself."""

    text: str


@frozen
class CallPiece:
    """What is new of a tool call. Its first piece carries id and name."""

    index: int
    """Of the call in its choice, from 0."""
    arguments: str
    """More of the JSON text."""
    id: str | None = None
    name: str | None = None


Part = Reasoning | Content | CallPiece


class ChoiceReader(Protocol):
    """Reads one choice. Pure: however the same text is cut, its parts joined are the same."""

    @property
    def num_reasoning_tokens(self) -> int: ...

    def feed(self, output: RequestOutput) -> list[Part]:
        """What the output adds. The one with a finish reason is the last, and brings what was held back as well."""
        ...

    def finish_reason(self, reason: str) -> str:
        """ "tool_calls" instead of "stop" after whole calls; any other reason as it is."""
        ...
