"""Attention by torch.nn.attention.varlen: one call per layer serves all rows of a step, decode and prefill alike.

Two ways to the cache. PAGED hands over the pool and block tables, and copies nothing; in torch 2.13 that is for
FlashAttention 3 and 4, which are packages of their own. GATHERED copies each row's blocks together first, and is for
the FlashAttention 2 that comes with torch. gpu/varlen_probe finds out which one works. Never run on a GPU so far: the
tests hold it, on a CPU and with a stand-in for torch's function, to gpu/attention.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import attrs
import torch

from gpu.attention import PlannedAttention
from gpu.batch import StepBatch, flatten_rows
from gpu.kv_pool import KvPool
from gpu.staging import Staging
from protocol.step import Row


class KvAccess(enum.StrEnum):
    """How the kernel comes to keys and values."""

    PAGED = "paged"
    GATHERED = "gathered"


class VarlenFunction(Protocol):
    """torch.nn.attention.varlen.varlen_attn, as far as it is used."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        *,
        scale: float | None,
        window_size: tuple[int, int],
        enable_gqa: bool,
        seqused_k: torch.Tensor | None,
        block_table: torch.Tensor | None,
        num_splits: int | None,
    ) -> Any: ...  # noqa: ANN401 (torch's own returns a tuple if that is asked for)


@attrs.frozen(eq=False)
class VarlenRows:
    """A step's rows as the kernel takes them, the same for every window."""

    cu_seq_q: torch.Tensor
    """[rows + 1] int32: where each row's tokens begin."""
    lengths: torch.Tensor
    """[rows] int32: how many keys each row sees; its queries are the last of them."""
    max_q: int
    max_k: int
    blocks: torch.Tensor
    """PAGED: [rows, width] int32, padded. GATHERED: [blocks] int64, row by row."""
    cu_seq_k: torch.Tensor | None
    """GATHERED: [rows + 1] int32: where each row's keys begin among the gathered ones. PAGED: None."""


@attrs.frozen(eq=False)
class VarlenPlan:
    """Implements gpu.attention.PlannedAttention."""

    slot_mapping: torch.Tensor
    rows: VarlenRows
    window: int | None
    function: VarlenFunction
    num_splits: int | None

    def attend(
        self,
        queries: torch.Tensor,
        layer: int,
        pool: KvPool,
        scale: float | None,
        softcap: float | None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert sinks is None, "a model with attention sinks was given a backend that has none"
        assert softcap is None, "a model with bounded scores was given a backend that has none"
        rows = self.rows
        if rows.cu_seq_k is None:
            keys, values = pool.keys[layer], pool.values[layer]
        else:
            keys, values = pool.gather(layer, rows.blocks)
        out: torch.Tensor = self.function(
            queries,
            keys,
            values,
            rows.cu_seq_q,
            rows.cu_seq_k,
            rows.max_q,
            rows.max_k,
            scale=scale,
            # The kernel counts the keys before the query's own.
            window_size=(-1 if self.window is None else self.window - 1, 0),
            enable_gqa=True,
            seqused_k=rows.lengths,
            block_table=rows.blocks if rows.cu_seq_k is None else None,
            num_splits=self.num_splits,
        )
        return out.flatten(1)


class VarlenBackend:
    """Implements gpu.attention_backend.AttentionBackend."""

    def __init__(
        self,
        function: VarlenFunction,
        access: KvAccess,
        windows: Sequence[int | None],
        block_size: int,
        device: torch.device,
        fixed_max_k: int | None = None,
    ) -> None:
        """With `fixed_max_k`, which is the longest that a sequence may get, each row's keys are added up in the same
        order in any company: nothing by which a kernel chooses how to go about it depends on the other rows. With
        None the kernel may choose."""
        self.access = access
        self.name = f"varlen, {access}"
        self._function = function
        self._windows = frozenset(windows)
        self._block_size = block_size
        self._fixed_max_k = fixed_max_k
        self._staging = Staging(device)

    def batch(self, rows: Sequence[Row]) -> StepBatch:
        flat = flatten_rows(rows, self._block_size)
        order = [*flat.decode, *flat.prefill]
        counts = [len(row.token_ids) for row in order]
        lengths = [row.start + count for row, count in zip(order, counts, strict=True)]
        tables = [row.block_table[: -(-length // self._block_size)] for row, length in zip(order, lengths, strict=True)]
        longs = [flat.token_ids, flat.positions, flat.slots, flat.begun_blocks]
        ints = [[0, *accumulate(counts)], lengths]
        if self.access is KvAccess.PAGED:
            width = max(len(table) for table in tables)
            ints.append([block for table in tables for block in (*table, *[table[0]] * (width - len(table)))])
            (tokens, positions, slots, begun), (cu_seq_q, seqused, blocks) = self._staging.place(longs, ints)
            blocks, cu_seq_k = blocks.view(len(rows), width), None
        else:
            longs.append([block for table in tables for block in table])
            ints.append([0, *accumulate(len(table) * self._block_size for table in tables)])
            (tokens, positions, slots, begun, blocks), (cu_seq_q, seqused, cu_seq_k) = self._staging.place(longs, ints)
        varlen = VarlenRows(cu_seq_q, seqused, *self.bounds(max(counts), max(lengths)), blocks, cu_seq_k)
        return StepBatch(tokens, positions, flat.first_token, self.plans(slots, varlen), begun)

    def bounds(self, max_q: int, max_k: int) -> tuple[int, int]:
        """What the kernel is told to be the most queries and keys of a row, which need not be exact."""
        if self._fixed_max_k is None:
            return max_q, max_k
        return max(2, max_q), self._fixed_max_k  # a single query would get another kernel

    def plans(self, slot_mapping: torch.Tensor, rows: VarlenRows) -> dict[int | None, PlannedAttention]:
        """By window."""
        splits = None if self._fixed_max_k is None else 1
        return {window: VarlenPlan(slot_mapping, rows, window, self._function, splits) for window in self._windows}
