"""Some of the rows or columns of a tensor: what one rank reads of it. Made by gpu/shard, read by gpu/weights."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Span:
    """Neighbours of all that there are: [start, start + count) of `whole`."""

    start: int
    count: int
    whole: int

    @classmethod
    def all_of(cls, whole: int) -> Span:
        return cls(0, whole, whole)

    @classmethod
    def share_of(cls, whole: int, index: int, size: int) -> Span:
        """That of `index` among `size`; where the whole does not divide, they differ by one."""
        start, stop = whole * index // size, whole * (index + 1) // size
        return cls(start, stop - start, whole)

    @property
    def stop(self) -> int:
        return self.start + self.count

    @property
    def is_whole(self) -> bool:
        return self.count == self.whole

    @property
    def places(self) -> range:
        return range(self.start, self.stop)

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)

    def times(self, size: int) -> Span:
        """The same, where each of them is `size` rows: of heads, say."""
        return Span(self.start * size, self.count * size, self.whole * size)


Extent = int | Span
"""All of so many, or some of them."""
Parts = Sequence[tuple[str, Extent]]
"""Tensors by name with their rows, that are computed as one."""


def span(extent: Extent) -> Span:
    return extent if isinstance(extent, Span) else Span.all_of(extent)


def count_of(extent: Extent) -> int:
    return extent if isinstance(extent, int) else extent.count


def is_cut(extent: Extent) -> bool:
    return isinstance(extent, Span) and not extent.is_whole


def parts_of(names: Sequence[str], spans: Sequence[Span]) -> list[tuple[str, Extent]]:
    """Rows by the tensors that hold them: each has its own, or all lie one after the other in the only one."""
    if len(names) > 1 or len(spans) == 1:
        return [(name, rows if is_cut(rows) else rows.whole) for name, rows in zip(names, spans, strict=True)]
    whole = sum(rows.whole for rows in spans)
    if all(rows.is_whole for rows in spans):
        return [(names[0], whole)]
    parts: list[tuple[str, Extent]] = []
    before = 0
    for rows in spans:
        parts.append((names[0], Span(before + rows.start, rows.count, whole)))
        before += rows.whole
    return parts
