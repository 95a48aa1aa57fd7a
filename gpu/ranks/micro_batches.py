"""A step's rows in as many parts as there are stages, so that each stage has one while the next has the one before.

Pure: every rank cuts the same rows in the same way. Used by gpu/ranks/rank_model.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from protocol.lora import LoraId
from protocol.step import Row

LEAST_TOKENS = 32
"""Of a part. For fewer tokens a stage takes hardly less time than for twice as many, since it reads its weights once:
cutting would make the step longer."""


@attrs.frozen
class MicroBatch:
    rows: list[Row]
    lora_ids: list[LoraId]
    """As many, or none."""

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


def micro_batches(rows: Sequence[Row], lora_ids: Sequence[LoraId], stages: int) -> list[MicroBatch]:
    """The rows in their order, some of them cut in two: what comes first of a row is computed first in each layer.
    `rows` is not empty."""
    total = sum(len(row.token_ids) for row in rows)
    count = max(1, min(stages, total // LEAST_TOKENS))
    if count == 1:
        return [MicroBatch(list(rows), list(lora_ids))]
    ends = [total * (part + 1) // count for part in range(count)]
    batches = [MicroBatch([], []) for _ in ends]
    place, done = 0, 0
    for index, row in enumerate(rows):
        left = row
        while True:
            room = ends[place] - done
            first, rest = _cut(left, room)
            batches[place].rows.append(first)
            if lora_ids:
                batches[place].lora_ids.append(lora_ids[index])
            done += len(first.token_ids)
            if done >= ends[place] and place < count - 1:
                place += 1
            if rest is None:
                break
            left = rest
    return [batch for batch in batches if batch.rows]


def _cut(row: Row, room: int) -> tuple[Row, Row | None]:
    """A short one stays whole, in the part that it begins in."""
    size = len(row.token_ids)
    if size <= room or size < LEAST_TOKENS:
        return row, None
    first = Row(row.slot, row.start, row.token_ids[:room], row.block_table, False)
    return first, Row(row.slot, row.start + room, row.token_ids[room:], row.block_table, row.sample)
