"""A step plan's rows as flat tensors, so that all rows go through the linears together.

Order of the flat tokens: rows of one token (decode) by falling length, then the others (prefill) in the plan's order.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from gpu.attention import PlannedAttention, plan_attention
from protocol.step import Row


@attrs.frozen(eq=False)
class StepBatch:
    """One step for the model."""

    token_ids: torch.Tensor
    """[tokens] int64."""
    positions: torch.Tensor
    """[tokens] int64."""
    first_token: list[int]
    """Per row of the plan, where its tokens begin in the flat step."""
    attention: dict[int | None, PlannedAttention]
    """By window."""
    begun_blocks: torch.Tensor
    """[count] int64: blocks that this step begins and does not fill. They are cleared before they are written, so
    that nobody computes with what an earlier owner left behind."""


@attrs.frozen(eq=False)
class FlatRows:
    """The same as plain numbers, before a backend puts them where it computes."""

    decode: list[Row]
    prefill: list[Row]
    first_token: list[int]
    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    begun_blocks: list[int]


def flatten_rows(rows: Sequence[Row], block_size: int) -> FlatRows:
    """`rows` is not empty, and each row has tokens and blocks for them."""
    decode = sorted((i for i, row in enumerate(rows) if len(row.token_ids) == 1), key=lambda i: -rows[i].start)
    prefill = [i for i, row in enumerate(rows) if len(row.token_ids) != 1]
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    begun: list[int] = []
    first_token = [0] * len(rows)
    for index in decode + prefill:
        row = rows[index]
        end = row.start + len(row.token_ids)
        assert row.token_ids, f"slot {row.slot} has no tokens to compute"
        assert len(row.block_table) * block_size >= end, f"slot {row.slot}'s blocks do not cover {end} positions"
        first_token[index] = len(token_ids)
        token_ids += row.token_ids
        positions += range(row.start, end)
        slots += [row.block_table[p // block_size] * block_size + p % block_size for p in range(row.start, end)]
        if end % block_size and end // block_size * block_size >= row.start:
            begun.append(row.block_table[end // block_size])
    return FlatRows(
        [rows[i] for i in decode], [rows[i] for i in prefill], first_token, token_ids, positions, slots, begun
    )


def make_batch(
    rows: Sequence[Row], windows: Sequence[int | None], block_size: int, dtype: torch.dtype, device: torch.device
) -> StepBatch:
    """For the reference attention. `rows` is not empty, and each row has tokens and blocks for them."""
    flat = flatten_rows(rows, block_size)
    slot_mapping = torch.tensor(flat.slots, device=device)
    return StepBatch(
        torch.tensor(flat.token_ids, device=device),
        torch.tensor(flat.positions, device=device),
        flat.first_token,
        {
            window: plan_attention(flat.decode, flat.prefill, slot_mapping, block_size, window, dtype)
            for window in set(windows)
        },
        torch.tensor(flat.begun_blocks, dtype=torch.int64, device=device),
    )
