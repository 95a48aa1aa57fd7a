"""Puts the decoder's pieces together from a checkpoint: the one place that knows which tensor goes where.

With ranks, each reads its own share (gpu/shard), and the pieces that need the others get their group. Used by
gpu/models/decoder.
"""

from __future__ import annotations

from functools import partial

import torch

from gpu.architectures import QkNorm
from gpu.config import ModelConfig
from gpu.groups.groups import Groups
from gpu.layers.attention import Attention
from gpu.layers.experts import Experts, SharedExpert
from gpu.layers.linear import Linear, make_linear
from gpu.layers.mlp import ClampedGate, GatedMLP, gated
from gpu.layers.norm import NoNorm, Norm, RMSNorm, WholeNorm, WideRMSNorm
from gpu.layers.packed_weight import PackedWeight
from gpu.layers.parallel import (
    Combine,
    Embedding,
    GatheredSum,
    ParallelEmbedding,
    ParallelHead,
    ParallelWholeNorm,
    PlainEmbedding,
    Reduced,
    RowParallelLinear,
)
from gpu.layers.rope import RotaryEmbedding
from gpu.linear_change import LinearChange
from gpu.models.decoder_layer import DecoderLayer
from gpu.shard import Shard
from gpu.span import Extent, Parts, Span, parts_of
from gpu.weights import Rearrange, WeightLoader, WeightSource


class DecoderLoader:
    """For one model on one rank."""

    def __init__(self, config: ModelConfig, loader: WeightLoader, shard: Shard, groups: Groups) -> None:
        self._config = config
        self._loader = loader
        self._shard = shard
        self._groups = groups
        self._is_shared = groups.tensor.size > 1

    def embedding(self) -> tuple[Embedding, torch.Tensor, torch.Tensor | PackedWeight]:
        """What looks tokens up, its matrix, and the head's weight. Looking up a token needs the plain matrix, also
        where the head is another form of the same."""
        config, loader, rows = self._config, self._loader, self._shard.vocabulary
        embedding, head = tied_embedding(config, loader.source)
        matrix = loader.matrix(parts_of([embedding], [rows]), config.hidden_size)
        look_up: Embedding = PlainEmbedding(matrix)
        if self._is_shared:
            look_up = ParallelEmbedding(matrix, rows.start, self._groups.tensor)
        if head == embedding:
            return look_up, matrix, loader.also_linear_weight(head, matrix)
        return look_up, matrix, loader.linear_weight(parts_of([head], [rows]), config.hidden_size)

    def no_embedding(self) -> torch.Tensor:
        """Of a later stage: no rows, of the right type and in the right place."""
        return torch.empty((0, self._config.hidden_size), dtype=self._loader.dtype, device=self._loader.device)

    def head(self, weight: torch.Tensor | PackedWeight, change: LinearChange | None) -> Linear:
        linear = make_linear(weight) if change is None else change.head(make_linear(weight))
        if not self._is_shared:
            return linear
        return ParallelHead(linear, self._shard.vocabulary_rows, self._config.vocab_size, self._groups.tensor)

    def layer(self, layer: int, rotary: RotaryEmbedding) -> DecoderLayer:
        config, prefix = self._config, f"model.layers.{layer}."
        names = config.norms
        sparse = config.experts is not None and layer in config.experts.layers
        return DecoderLayer(
            self._layer_norm(prefix, names.before_attention),
            self._attention(layer, f"{prefix}self_attn."),
            self._layer_norm(prefix, names.after_attention),
            self._layer_norm(prefix, names.before_mlp),
            self._experts(prefix)
            if sparse
            else self._mlp(f"{prefix}mlp", config.intermediate_size, config.mlp_bias, self._is_shared),
            self._layer_norm(prefix, names.after_mlp),
            config.windows[layer],
            rotary,
        )

    def norm(self, name: str, size: Extent) -> RMSNorm | WideRMSNorm:
        config = self._config
        weight = self._loader.vector([(f"{name}.weight", size)])
        if config.norm_offset:
            return WideRMSNorm(weight.float() + 1.0, config.rms_norm_eps)
        return RMSNorm(weight, config.rms_norm_eps)

    def _layer_norm(self, prefix: str, name: str | None) -> Norm:
        return NoNorm() if name is None else self.norm(f"{prefix}{name}", self._config.hidden_size)

    def _attention(self, layer: int, prefix: str) -> Attention:
        config, shard = self._config, self._shard
        qkv = parts_of([f"{prefix}{name}" for name in config.qkv], shard.projections)
        order = config.rope_of(layer).head_order(config.head_dim)
        rotated = shard.queries.count + shard.keys.count
        rearrange = None if order is None else partial(reorder_heads, order, rotated)
        weight, bias = self._weight_and_bias(qkv, config.hidden_size, config.qkv_bias, rearrange)
        sinks = self._loader.vector(parts_of([f"{prefix}sinks"], [shard.heads])) if config.sinks else None
        return Attention(
            layer - shard.layers.start,  # the pool has this stage's layers only
            shard.heads.count,
            shard.kv_heads.count,
            make_linear(weight, bias),
            self._row_linear(f"{prefix}o_proj", shard.queries, config.output_bias, self._is_shared),
            self._qk_norm(prefix),
            config.attention_scale,
            config.attention_softcap,
            sinks,
        )

    def _qk_norm(self, prefix: str) -> tuple[Norm, Norm] | None:
        config, shard = self._config, self._shard
        if config.qk_norm is QkNorm.NONE:
            return None
        query_name, key_name = f"{prefix}q_norm", f"{prefix}k_norm"
        if config.qk_norm is QkNorm.PER_HEAD:
            return self.norm(query_name, config.head_dim), self.norm(key_name, config.head_dim)
        return self._whole_norm(query_name, shard.queries), self._whole_norm(key_name, shard.keys)

    def _whole_norm(self, name: str, rows: Span) -> Norm:
        norm = self.norm(name, rows)
        if not self._is_shared:
            return WholeNorm(norm)
        return ParallelWholeNorm(norm.weight, norm.eps, self._groups.tensor)

    def _mlp(self, prefix: str, size: int, biased: bool, is_reduced: bool) -> GatedMLP:
        """Not reduced: what it gives is this rank's part of a sum that is made elsewhere."""
        config, inner = self._config, self._shard.inner(size)
        gate_up = parts_of([f"{prefix}.{name}" for name in config.gate_up], (inner, inner))
        return GatedMLP(
            self._linear(gate_up, config.hidden_size, biased),
            self._row_linear(f"{prefix}.down_proj", inner, biased, is_reduced),
            config.activation,
        )

    def _experts(self, prefix: str) -> Experts:
        config = self._config
        experts, hidden = config.experts, config.hidden_size
        assert experts is not None, "a layer of experts in a model without"
        block = f"{prefix}{experts.names.block}"
        shared = None
        if experts.shared_size is not None:
            shared = SharedExpert(
                self._mlp(f"{block}.shared_expert", experts.shared_size, False, False),
                self._linear([(f"{block}.shared_expert_gate", 1)], hidden),
            )
        router = self._linear([(f"{block}.{experts.names.router}", experts.count)], hidden, experts.names.biased)
        held = self._shard.experts
        return Experts(
            router,
            [self._expert(f"{block}.experts.{index}.") for index in held.places],
            experts.per_token,
            experts.normalised,
            shared,
            held.start,
            self._combine(),
        )

    def _combine(self) -> Combine | None:
        if not self._is_shared:
            return None
        return GatheredSum(self._groups.expert) if self._shard.experts_apart else Reduced(self._groups.tensor)

    def _expert(self, prefix: str) -> GatedMLP:
        config, experts = self._config, self._config.experts
        assert experts is not None, "an expert in a model without"
        names, inner = experts.names, self._shard.expert_inner(experts.size)
        gate_up = parts_of([prefix + names.gate, prefix + names.up], (inner, inner))
        return GatedMLP(
            self._linear(gate_up, config.hidden_size, names.biased),
            self._row_linear(prefix + names.down, inner, names.biased, is_reduced=False),
            config.activation,
            gated if experts.limit is None else ClampedGate(experts.limit),
        )

    def _linear(self, parts: Parts, columns: Extent, biased: bool = False) -> Linear:
        return make_linear(*self._weight_and_bias(parts, columns, biased))

    def _row_linear(self, name: str, columns: Span, biased: bool, is_reduced: bool) -> Linear:
        """Where it has some of the columns only, the bias is added to one rank's part, or to the sum."""
        parts: Parts = [(name, self._config.hidden_size)]
        if is_reduced:
            weight, bias = self._weight_and_bias(parts, columns, biased)
            return RowParallelLinear(make_linear(weight), bias, self._groups.tensor)
        return self._linear(parts, columns, biased and columns.start == 0)

    def _weight_and_bias(
        self, parts: Parts, columns: Extent, biased: bool, rearrange: Rearrange | None = None
    ) -> tuple[torch.Tensor | PackedWeight, torch.Tensor | None]:
        loader = self._loader
        weight = loader.linear_weight([(f"{name}.weight", rows) for name, rows in parts], columns, rearrange)
        bias = loader.vector([(f"{name}.bias", rows) for name, rows in parts], rearrange) if biased else None
        return weight, bias


def tied_embedding(config: ModelConfig, source: WeightSource) -> tuple[str, str]:
    """The names of the embedding's and the head's tensor.

    Tied: one matrix, whichever of the two is stored (a stored head beside the embedding is ignored). Untied: both must
    be there. Without a word in config.json the model is tied exactly if no head is stored."""
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    tied = config.tie_word_embeddings
    if tied is None:
        tied = head not in source
    if tied and embedding not in source and head in source:
        embedding = head
    return embedding, embedding if tied else head


def reorder_heads(order: torch.Tensor, count: int, rows: torch.Tensor) -> None:
    """Put the rows of each head, of the first `count` rows [rows, ...], into this order, [head_dim]."""
    heads = rows[:count].unflatten(0, (-1, len(order)))
    heads.copy_(heads[:, order.to(rows.device)])
