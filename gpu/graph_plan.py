"""Which recorded graph a decode step runs in, and its numbers padded to that graph's shape. Pure; for gpu/graphs.

A graph is recorded for a number of rows and a width of block tables, and serves every smaller step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import attrs

from protocol.step import Row

SMALL_ROWS = (1, 2, 4)
ROWS_STEP = 8


@attrs.frozen(order=True)
class GraphKey:
    """The shape that a graph is recorded for."""

    rows: int
    width: int
    """Blocks per row."""


@attrs.frozen(eq=False)
class GraphInputs:
    """A step as a graph takes it: one token per row, `rows` long each, `blocks` row by row `width` long."""

    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    begun_blocks: list[int]
    lengths: list[int]
    blocks: list[int]


class GraphPlan:
    """Numbers of rows: 1, 2, 4, 8, 16, 24, … up to max_num_seqs. Widths: powers of two up to the longest sequence's."""

    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, spare_block: int, max_blocks: int | None = None
    ) -> None:
        """`spare_block` belongs to no sequence: what padding rows write and read. No graph has more than `max_blocks`
        over all rows, for kernels before which blocks are copied."""
        self._block_size = block_size
        self._max_blocks = max_blocks
        self._spare_block = spare_block
        steps = range(ROWS_STEP, max_num_seqs, ROWS_STEP)
        self.rows = [*(size for size in SMALL_ROWS if size < max_num_seqs), *steps, max_num_seqs]
        longest = -(-max_model_len // block_size)
        self.widths = [2**power for power in range((longest - 1).bit_length())] + [longest]

    @property
    def largest(self) -> GraphKey:
        """The one with the most blocks, and of those with as many, with the most rows."""
        keys = (GraphKey(rows, width) for rows in self.rows for width in self.widths)
        allowed = [key for key in keys if self._is_allowed(key)]
        return max(allowed, key=lambda key: (key.rows * key.width, key.rows), default=GraphKey(1, 1))

    def key_for(self, rows: Sequence[Row]) -> GraphKey | None:
        """The smallest graph that the step fits into; None if there is none: a row of several tokens, too
        many rows, too many blocks."""
        if not rows or len(rows) > self.rows[-1] or any(len(row.token_ids) != 1 for row in rows):
            return None
        width = max(row.start for row in rows) // self._block_size + 1
        if width > self.widths[-1]:
            return None
        key = GraphKey(self.rows[bisect_left(self.rows, len(rows))], self.widths[bisect_left(self.widths, width)])
        return key if self._is_allowed(key) else None

    def inputs(self, key: GraphKey, rows: Sequence[Row]) -> GraphInputs:
        """Row i of the step is row i of the graph; no rows at all is a step of padding only."""
        size, spare, padding = self._block_size, self._spare_block, key.rows - len(rows)
        blocks: list[int] = []
        for row in rows:
            table = row.block_table[: row.start // size + 1]
            # Behind a row's end nothing is seen, but what is gathered must be numbers: the spare block holds some.
            blocks += [*table, *[spare] * (key.width - len(table))]
        return GraphInputs(
            [row.token_ids[0] for row in rows] + [0] * padding,
            [row.start for row in rows] + [0] * padding,
            [row.block_table[row.start // size] * size + row.start % size for row in rows] + [spare * size] * padding,
            # As in gpu/batch: a block is cleared by the step that begins and does not fill it.
            [row.block_table[row.start // size] if row.start % size == 0 and size > 1 else spare for row in rows]
            + [spare] * padding,
            [row.start + 1 for row in rows] + [1] * padding,
            blocks + [spare] * (padding * key.width),
        )

    def _is_allowed(self, key: GraphKey) -> bool:
        return self._max_blocks is None or key.rows * key.width <= self._max_blocks
