"""Attention by flashinfer, where that is installed: it reads the pool's blocks itself, bounds scores, and takes 8 bits.

A step's one-token rows go through its decode wrapper, the others through its prefill wrapper, each planned once per
step and window. Graphs are not recorded over it, since what it plans depends on the step. Chosen by
gpu/attention_choice if it gives what the reference gives. Never run on a GPU so far: the tests hold it, with a stand-in
that has flashinfer 0.7's signatures, to gpu/attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Protocol

import attrs
import torch

from gpu.batch import StepBatch, flatten_rows
from gpu.kv_pool import KvPool
from gpu.staging import Staging
from protocol.step import Row

WORKSPACE_BYTES = 128 * 2**20
"""What flashinfer recommends."""


class PagedWrapper(Protocol):
    """flashinfer's two wrappers, as far as both are used alike; each has a `plan` of its own."""

    plan: Callable[..., None]

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> Any: ...  # noqa: ANN401


MakeWrapper = Callable[[torch.Tensor, str], PagedWrapper]
"""From a workspace [bytes] uint8 of zeros, and "NHD"."""


@attrs.frozen
class FlashInfer:
    """What is used of the package."""

    decode: MakeWrapper
    """BatchDecodeWithPagedKVCacheWrapper"""
    prefill: MakeWrapper
    """BatchPrefillWithPagedKVCacheWrapper"""
    workspace_bytes: int = WORKSPACE_BYTES


@attrs.frozen
class FlashInferScores:
    """How a model attends, which flashinfer wants to know when it plans."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float | None
    softcap: float | None


@attrs.frozen(eq=False)
class FlashInferPlan:
    """Implements gpu.attention.PlannedAttention. Valid until the next step is planned."""

    slot_mapping: torch.Tensor
    num_decode: int
    decode: PagedWrapper | None
    prefill: PagedWrapper | None
    scores: FlashInferScores

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
        planned = (self.scores.scale, self.scores.softcap)
        assert (scale, softcap) == planned, f"planned for scale and cap {planned}, asked for {(scale, softcap)}"
        cache = (pool.keys[layer], pool.values[layer])
        outputs: list[torch.Tensor] = []
        if self.decode is not None:
            outputs.append(self.decode.run(queries[: self.num_decode].contiguous(), cache))
        if self.prefill is not None:
            outputs.append(self.prefill.run(queries[self.num_decode :].contiguous(), cache))
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).flatten(1)


class FlashInferBackend:
    """Implements gpu.attention_backend.AttentionBackend."""

    name = "flashinfer"

    def __init__(
        self,
        package: FlashInfer,
        scores: FlashInferScores,
        windows: Sequence[int | None],
        block_size: int,
        dtype: torch.dtype,
        kept_in: torch.dtype,
        device: torch.device,
    ) -> None:
        """Queries are of `dtype`, the pool of `kept_in`."""
        self._scores = scores
        self._block_size = block_size
        self._dtype, self._kept_in = dtype, kept_in
        self._staging = Staging(device)
        workspace = torch.zeros(package.workspace_bytes, dtype=torch.uint8, device=device)  # one call runs at a time
        self._wrappers = {
            window: (package.decode(workspace, "NHD"), package.prefill(workspace, "NHD")) for window in set(windows)
        }
        self._planned = torch.cuda.Event() if device.type == "cuda" else None

    def batch(self, rows: Sequence[Row]) -> StepBatch:
        flat = flatten_rows(rows, self._block_size)
        longs = [flat.token_ids, flat.positions, flat.slots, flat.begun_blocks]
        (tokens, positions, slots, begun), _ = self._staging.place(longs, [])
        if self._planned is not None:
            self._planned.synchronize()  # plans go through pinned memory that each wrapper has once
        plans = {}
        for window, (decode, prefill) in self._wrappers.items():
            if flat.decode:
                self._plan(decode.plan, flat.decode, window)
            if flat.prefill:
                counts = [len(row.token_ids) for row in flat.prefill]
                self._plan(prefill.plan, flat.prefill, window, _ints([0, *accumulate(counts)]), causal=True)
            plans[window] = FlashInferPlan(
                slots,
                len(flat.decode),
                decode if flat.decode else None,
                prefill if flat.prefill else None,
                self._scores,
            )
        if self._planned is not None:
            self._planned.record()
        return StepBatch(tokens, positions, flat.first_token, dict(plans), begun)

    def _plan(
        self, plan: Callable[..., None], rows: Sequence[Row], window: int | None, *begins: torch.Tensor, **more: bool
    ) -> None:
        """Its index tensors stay on the host, where flashinfer reads them before it copies them to the device."""
        size, scores = self._block_size, self._scores
        lengths = [row.start + len(row.token_ids) for row in rows]
        tables = [row.block_table[: -(-length // size)] for row, length in zip(rows, lengths, strict=True)]
        plan(
            *begins,
            _ints([0, *accumulate(len(table) for table in tables)]),
            _ints([block for table in tables for block in table]),
            _ints([(length - 1) % size + 1 for length in lengths]),
            scores.heads,
            scores.kv_heads,
            scores.head_dim,
            size,
            # Both count the keys before the query's own.
            window_left=-1 if window is None else window - 1,
            logits_soft_cap=scores.softcap,
            sm_scale=scores.scale,
            q_data_type=self._dtype,
            kv_data_type=self._kept_in,
            **more,
        )


def _ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
