"""Attention over the paged cache: what is worked out once per step (which blocks, which mask), and the arithmetic.

Rows with one token (decode) are gathered together, grouped by length so that padding stays below half; rows with more
(prefill) go one by one over their own blocks. Made by gpu/batch.py, used by gpu/layers/attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import torch
import torch.nn.functional as F

from gpu.attention_scores import Scores
from gpu.kv_pool import KvPool
from protocol.step import Row

HELD_QUERIES = 64
"""Queries whose scores are held at once, at most, where scores have a soft cap or sinks, …"""
HELD_SCORES = 1 << 26
"""… and as many scores: 256 MiB in float32."""


class PlannedAttention(Protocol):
    """A step's attention, worked out once for all layers with the same window, by whichever backend computes it."""

    @property
    def slot_mapping(self) -> torch.Tensor:
        """[tokens] int64: where the pool stores each token."""

    def attend(
        self,
        queries: torch.Tensor,
        layer: int,
        pool: KvPool,
        scale: float | None,
        softcap: float | None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[tokens, heads, head_dim] over the layer's cache, into [tokens, heads * head_dim].

        Scores are multiplied with `scale` (None is head_dim ** -0.5), then bounded smoothly to ± `softcap`.
        With `sinks` [heads], each head's softmax is over one more score, whose part is dropped."""


@attrs.frozen(eq=False)
class DecodeGroup:
    """Rows of one token each; their tokens are tokens[first : first + count] of the flat step."""

    first: int
    count: int
    blocks: torch.Tensor
    """[count * blocks per row], int64; short rows are padded with a block of their own."""
    mask: torch.Tensor
    """[count, 1, 1, positions]: 0 or -inf, in the activations' dtype."""


@attrs.frozen(eq=False)
class PrefillRow:
    """One row of several tokens: tokens[first : first + count] of the flat step."""

    first: int
    count: int
    blocks: torch.Tensor
    """[blocks], int64."""
    length: int
    """Positions of those blocks that are used."""
    mask: torch.Tensor | None
    """[count, length] as above; None is plain causal from the sequence's start."""


@attrs.frozen(eq=False)
class AttentionPlan:
    """A step's attention in torch's own operators, on any device: the reference of every other backend."""

    slot_mapping: torch.Tensor
    """[tokens] int64: where the pool stores each token."""
    decode: list[DecodeGroup]
    prefill: list[PrefillRow]

    def attend(
        self,
        queries: torch.Tensor,
        layer: int,
        pool: KvPool,
        scale: float | None,
        softcap: float | None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As PlannedAttention says."""
        scores = Scores(scale, softcap, sinks)
        outputs = [_attend_decode(queries, layer, group, pool, scores) for group in self.decode]
        outputs += [_attend_prefill(queries, layer, row, pool, scores) for row in self.prefill]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def plan_attention(
    decode: Sequence[Row],
    prefill: Sequence[Row],
    slot_mapping: torch.Tensor,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> AttentionPlan:
    """Plan for rows that lie in this order in the flat step; `decode` is sorted by falling length."""
    device = slot_mapping.device
    groups, first = [], 0
    while first < len(decode):
        longest = decode[first].start + 1
        last = first + 1
        while last < len(decode) and 2 * (decode[last].start + 1) > longest:
            last += 1
        groups.append(_decode_group(decode[first:last], first, block_size, window, dtype, device))
        first = last
    rows = []
    for row in prefill:
        rows.append(_prefill_row(row, first, block_size, window, dtype, device))
        first += len(row.token_ids)
    return AttentionPlan(slot_mapping, groups, rows)


def _attend_decode(queries: torch.Tensor, layer: int, group: DecodeGroup, pool: KvPool, scores: Scores) -> torch.Tensor:
    keys, values = pool.gather(layer, group.blocks)
    positions, kv_heads, head_dim = keys.shape[0] // group.count, keys.shape[1], keys.shape[2]
    # The query heads of one KV head stand where SDPA expects query positions: no copies of keys for the group.
    grouped = queries[group.first : group.first + group.count].reshape(group.count, kv_heads, -1, head_dim)
    keys = keys.view(group.count, positions, kv_heads, head_dim).transpose(1, 2)
    values = values.view(group.count, positions, kv_heads, head_dim).transpose(1, 2)
    if scores.are_plain:
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask, scale=scores.scale)
    else:
        sinks = None if scores.sinks is None else scores.sinks.view(kv_heads, -1, 1)
        out = scores.attend(grouped, keys, values, group.mask, sinks)
    return out.reshape(group.count, -1)


def _attend_prefill(queries: torch.Tensor, layer: int, row: PrefillRow, pool: KvPool, scores: Scores) -> torch.Tensor:
    keys, values = (heads[: row.length].transpose(0, 1).unsqueeze(0) for heads in pool.gather(layer, row.blocks))
    if not scores.are_plain:
        return _prefill_in_parts(queries[row.first : row.first + row.count], keys, values, row, scores)
    out = F.scaled_dot_product_attention(
        queries[row.first : row.first + row.count].transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=row.mask,
        is_causal=row.mask is None,
        scale=scores.scale,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1).flatten(1)


def _prefill_in_parts(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, row: PrefillRow, scores: Scores
) -> torch.Tensor:
    """Query by query group, so that the scores of all heads need bounded memory."""
    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    mask = _causal(row.length, queries.dtype, queries.device) if row.mask is None else row.mask
    held = max(1, min(HELD_QUERIES, HELD_SCORES // (queries.shape[1] * row.length)))
    outputs = []
    for first in range(0, row.count, held):
        part = queries[first : first + held]
        # [1, kv_heads, queries * heads per KV head, head_dim], each query's mask repeated for its heads
        grouped = part.unflatten(1, (kv_heads, -1)).permute(1, 0, 2, 3).flatten(1, 2).unsqueeze(0)
        repeated = mask[first : first + len(part)].repeat_interleave(queries.shape[1] // kv_heads, dim=0)
        sinks = None
        if scores.sinks is not None:
            sinks = scores.sinks.view(kv_heads, 1, -1).expand(-1, len(part), -1).reshape(kv_heads, -1, 1)
        out = scores.attend(grouped, keys, values, repeated, sinks)
        outputs.append(out.view(kv_heads, len(part), -1, head_dim).permute(1, 0, 2, 3).flatten(1))
    return torch.cat(outputs)


def _decode_group(
    rows: Sequence[Row], first: int, block_size: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> DecodeGroup:
    """Blocks from the first one inside the window to the last one, padded to the row with most of them."""
    lengths = [row.start + 1 for row in rows]
    skipped = [0 if window is None else max(0, length - window) // block_size for length in lengths]
    tables = [
        row.block_table[skip : -(-length // block_size)]
        for row, length, skip in zip(rows, lengths, skipped, strict=True)
    ]
    width = max(len(table) for table in tables)
    # What is masked is still multiplied with 0, so padding must be the row's own: another's may hold NaN.
    padded = [table + table[:1] * (width - len(table)) for table in tables]
    length = torch.tensor(lengths, device=device).unsqueeze(1)
    offset = torch.tensor(skipped, device=device).unsqueeze(1) * block_size
    position = torch.arange(width * block_size, device=device) + offset  # [rows, positions]
    hidden = position >= length
    if window is not None:
        hidden |= position < length - window
    return DecodeGroup(
        first, len(rows), torch.tensor(padded, device=device).flatten(), _additive(hidden, dtype)[:, None, None, :]
    )


def _prefill_row(
    row: Row, first: int, block_size: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> PrefillRow:
    count = len(row.token_ids)
    length = row.start + count
    skipped = 0 if window is None else max(0, row.start + 1 - window) // block_size
    blocks = torch.tensor(row.block_table[skipped : -(-length // block_size)], device=device)
    mask = None
    if row.start > 0 or (window is not None and window < length):
        query = torch.arange(row.start, length, device=device).unsqueeze(1)
        key = torch.arange(skipped * block_size, length, device=device)
        hidden = key > query
        if window is not None:
            hidden |= key <= query - window
        mask = _additive(hidden, dtype)
    return PrefillRow(first, count, blocks, length - skipped * block_size, mask)


def _causal(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    position = torch.arange(length, device=device)
    return _additive(position > position.unsqueeze(1), dtype)


def _additive(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
