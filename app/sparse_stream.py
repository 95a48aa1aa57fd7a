"""stream_interval: a stream that tells several tokens at a time, for clients and networks that mind many small events.

The first token of each choice and its end are told at once. Used by the routes that stream.
"""

from __future__ import annotations

from typing import final

import msgspec

from app.checks import ranged
from app.mailbox import merge
from app.respond import Writer
from app.schemas.sampling import SamplingFields
from protocol.messages import RequestOutput


def with_interval(writer: Writer, fields: SamplingFields, least: int) -> Writer:
    """The writer, or one that tells every so many tokens. A request may ask for more than the server's `least`."""
    interval = max(least, checked_interval(fields))
    return writer if interval == 1 or not fields.stream else SparseWriter(writer, interval)


def checked_interval(fields: SamplingFields) -> int:
    """Raises BadRequestError."""
    return ranged("stream_interval", fields.stream_interval, 1, None, 1)


@final
class HeldOutputs:
    """At most one merged delta of each choice, until it has enough tokens to be told."""

    def __init__(self, interval: int) -> None:
        """`interval` is in tokens; with 1 nothing is held."""
        self._interval = interval
        self._held: dict[int, RequestOutput] = {}
        self._begun: set[int] = set()

    def due(self, index: int, output: RequestOutput) -> tuple[int, RequestOutput] | None:
        """What is to be told now that this has come."""
        held = self._held.pop(index, None)
        merged = output if held is None else merge(held, output)
        is_first = index not in self._begun and bool(merged.token_ids)
        if is_first or merged.finish_reason is not None or len(merged.token_ids) >= self._interval:
            self._begun.add(index)
            return index, merged
        self._held[index] = merged
        return None

    def taken(self) -> list[tuple[int, RequestOutput]]:
        """What is held, and is no more: nothing comes after it."""
        held, self._held = sorted(self._held.items()), {}
        return held


@final
class SparseWriter:
    """Keeps, per choice, at most one merged delta back."""

    def __init__(self, writer: Writer, interval: int) -> None:
        """`interval` is in tokens."""
        self._writer = writer
        self._held = HeldOutputs(interval)

    def frames(self, outputs: list[tuple[int, RequestOutput]]) -> list[bytes]:
        return self._writer.frames([due for index, output in outputs if (due := self._held.due(index, output))])

    def held_back(self) -> list[bytes]:
        return [*self._writer.frames(self._held.taken()), *self._writer.held_back()]

    def closing(self) -> list[bytes]:
        return self._writer.closing()

    async def whole(self) -> msgspec.Struct:
        return await self._writer.whole()
