"""The attention block of a layer: projections, rotation, and attention over the paged KV cache."""

from __future__ import annotations

import torch

from gpu.attention import PlannedAttention
from gpu.kv_pool import KvPool
from gpu.layers.linear import Linear
from gpu.layers.norm import Norm
from gpu.layers.rope import rotate


class Attention:
    """Grouped-query self-attention of one layer."""

    def __init__(
        self,
        layer: int,
        heads: int,
        kv_heads: int,
        qkv: Linear,
        output: Linear,
        qk_norm: tuple[Norm, Norm] | None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.layer = layer
        self.heads = heads
        self.kv_heads = kv_heads
        self.qkv = qkv  # [(heads + 2 * kv_heads) * head_dim, hidden]
        self.output = output  # [hidden, heads * head_dim]
        self.qk_norm = qk_norm
        self.scale = scale  # None is head_dim ** -0.5
        self.softcap = softcap
        self.sinks = sinks  # [heads], or None
        self.rotate = rotate  # gpu/compiled_parts may put another one in its place

    def __call__(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], plan: PlannedAttention, pool: KvPool
    ) -> torch.Tensor:
        """[tokens, hidden] to the same shape; the tokens' keys and values are written into the pool first."""
        rotated = self.heads + self.kv_heads
        heads = self.qkv(x).unflatten(-1, (rotated + self.kv_heads, -1))  # [tokens, heads + 2 * kv_heads, head_dim]
        queries_keys, values = heads[:, :rotated], heads[:, rotated:]
        if self.qk_norm is not None:
            query_norm, key_norm = self.qk_norm
            parts = query_norm(queries_keys[:, : self.heads]), key_norm(queries_keys[:, self.heads :])
            queries_keys = torch.cat(parts, dim=1)
        queries_keys = self.rotate(queries_keys, *rotation)
        pool.write(self.layer, plan.slot_mapping, queries_keys[:, self.heads :], values)
        queries = queries_keys[:, : self.heads]
        attended = plan.attend(queries, self.layer, pool, self.scale, self.softcap, self.sinks)
        return self.output(attended)
