"""Flat tensors of a step against a plain reading of the plan's rows."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.batch import make_batch
from protocol.ids import Slot
from protocol.step import Row

CPU = torch.device("cpu")


@st.composite
def plans(draw):
    """Rows with blocks of their own, and the block size."""
    block_size = draw(st.sampled_from([1, 3, 4]))
    rows, next_block = [], 0
    for slot in range(draw(st.integers(1, 6))):
        start, count = draw(st.integers(0, 20)), draw(st.sampled_from([1, 1, 2, 5, 9]))
        blocks = -(-(start + count) // block_size) + draw(st.integers(0, 2))
        table = draw(st.permutations(range(next_block, next_block + blocks)))
        next_block += blocks
        rows.append(Row(Slot(slot), start, [100 * slot + i for i in range(count)], list(table), False))
    return rows, block_size


@settings(max_examples=60)
@given(plans(), st.sampled_from([None, 1, 4, 7]))
def test_every_token_knows_its_place_and_sees_what_it_may(plan, window):
    rows, block_size = plan
    batch = make_batch(rows, [window], block_size, torch.float32, CPU)
    attention = batch.attention[window]
    owner = {}  # flat index to (row, position)
    begun = []
    for row, first in zip(rows, batch.first_token, strict=True):
        for offset, token_id in enumerate(row.token_ids):
            position, flat = row.start + offset, first + offset
            owner[flat] = (row, position)
            assert batch.token_ids[flat] == token_id
            assert batch.positions[flat] == position
            block = row.block_table[position // block_size]
            assert attention.slot_mapping[flat] == block * block_size + position % block_size
        end = row.start + len(row.token_ids)
        last = (end - 1) // block_size
        if end % block_size and last * block_size >= row.start:
            begun.append(row.block_table[last])
    assert len(owner) == len(batch.token_ids)
    assert sorted(batch.begun_blocks.tolist()) == sorted(begun)

    seen = {}
    for group in attention.decode:
        blocks = group.blocks.view(group.count, -1)
        for index in range(group.count):
            seen[group.first + index] = visible(blocks[index], group.mask[index, 0, 0], block_size)
    for part in attention.prefill:
        causal = torch.full((part.count, part.length), -torch.inf).triu(1)
        mask = causal if part.mask is None else part.mask
        for index in range(part.count):
            seen[part.first + index] = visible(part.blocks, mask[index], block_size)
    for flat, (row, position) in owner.items():
        first = 0 if window is None else max(0, position - window + 1)
        expected = [(row.block_table[p // block_size], p % block_size) for p in range(first, position + 1)]
        assert seen[flat] == expected


def visible(blocks: torch.Tensor, mask: torch.Tensor, block_size: int) -> list[tuple[int, int]]:
    """(block, offset) of what the mask lets through, in order."""
    places = [(block, offset) for block in blocks.tolist() for offset in range(block_size)]
    return [place for place, value in zip(places, mask.tolist(), strict=False) if value == 0.0]
