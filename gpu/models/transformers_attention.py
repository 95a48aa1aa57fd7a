"""Our attention in the place of transformers' own: what a model's layers call, by transformers' attention interface.

transformers has one function for all models under each name; ours hands on to the PagedAttention that hangs on the
calling module. Used by gpu/models/transformers_model.
"""

from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F

from gpu.batch import StepBatch
from gpu.kv_pool import KvPool
from protocol.errors import CheckpointError

NAME = "trillm"
ATTRIBUTE = "trillm_attention"
REFUSED = ("s_aux", "sinks", "position_bias", "alibi", "bias", "score_mod", "block_mask")
"""Arguments of a call that change the arithmetic and that our attention does not have."""


@attrs.frozen
class LayerAttention:
    """One layer's call, as it was seen when the model was probed."""

    heads: int
    kv_heads: int
    head_dim: int
    """Of queries and keys."""
    value_dim: int
    window: int | None


class PagedAttention:
    """A model's attention over the KV pool, layer by layer in the order in which the layers call.

    Without a pool it only looks on: it attends within the step's tokens and notes what each layer asks for.
    """

    def __init__(self) -> None:
        self.layers: list[LayerAttention] = []
        self._batch: StepBatch | None = None
        self._pool: KvPool | None = None
        self._calls = 0

    def begin(self, batch: StepBatch | None, pool: KvPool | None) -> None:
        """What follows belongs to this step."""
        self._batch, self._pool, self._calls = batch, pool, 0
        if pool is None:
            self.layers = []

    def end(self) -> None:
        """Raises CheckpointError if not every layer has called."""
        self._batch = self._pool = None
        if self._calls != len(self.layers):
            raise CheckpointError(
                f"{self._calls} layers attended in one step and {len(self.layers)} in another, which is not served"
            )

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        window: int | None,
        scale: float,
        softcap: float | None,
    ) -> torch.Tensor:
        """Queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, …] to [tokens, heads, value_dim]."""
        layer = LayerAttention(query.shape[1], key.shape[1], query.shape[2], value.shape[2], window)
        index = self._calls
        self._calls += 1
        if self._pool is None:
            self.layers.append(layer)
            return _alone(query, key, value, scale, softcap)
        assert self._batch is not None, "a pool without a batch"
        if layer != self.layers[index]:
            raise CheckpointError(f"layer {index} attends as {layer}, and did so before as {self.layers[index]}")
        kv_heads, head_dim = self._pool.keys.shape[-2:]
        plan = self._batch.attention[window]
        self._pool.write(index, plan.slot_mapping, _padded(key, kv_heads, head_dim), _padded(value, kv_heads, head_dim))
        # Layers smaller than the pool's heads are padded with zeros, which add nothing to a score or a sum.
        grouped = query.unflatten(1, (layer.kv_heads, -1)).flatten(2)  # [tokens, kv_heads, heads of one * head_dim]
        grouped = _padded(grouped, kv_heads, grouped.shape[2]).unflatten(2, (-1, layer.head_dim))
        queries = F.pad(grouped, (0, head_dim - layer.head_dim)).flatten(1, 2)
        out = plan.attend(queries, index, self._pool, scale, softcap)
        return out.view(len(out), -1, head_dim)[:, : layer.heads, : layer.value_dim]


def attention_function(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """What transformers calls, with [1, heads, tokens, head_dim]; returns [1, tokens, heads, head_dim].

    Raises CheckpointError for a kind of attention that is not served.
    """
    attention = module.__dict__.get(ATTRIBUTE)
    assert isinstance(attention, PagedAttention), f"{type(module).__name__} was not prepared"
    if attention_mask is not None:
        raise CheckpointError(f"{type(module).__name__} makes attention masks of its own, which is not served")
    for name in REFUSED:
        if others.get(name) is not None:
            raise CheckpointError(f"{type(module).__name__} attends with {name}, which is not served")
    if others.get("is_causal", module.__dict__.get("is_causal")) is False:
        raise CheckpointError(f"{type(module).__name__} sees tokens that are still to come, which is not served")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    query, key, value = (heads.squeeze(0).transpose(0, 1) for heads in (query, key, value))
    out = attention(query, key, value, sliding_window or None, scale, softcap)
    return out.unsqueeze(0).contiguous(), None


def _alone(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, softcap: float | None
) -> torch.Tensor:
    """Causal attention within these tokens."""
    key, value = (heads.repeat_interleave(query.shape[1] // heads.shape[1], dim=1) for heads in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    return torch.einsum("hqk,khd->qhd", weights, value)


def _padded(heads: torch.Tensor, count: int, size: int) -> torch.Tensor:
    """[tokens, heads, head_dim] with zeros up to [tokens, count, size]."""
    return F.pad(heads, (0, size - heads.shape[2], 0, count - heads.shape[1]))
