"""The decoder-only transformer of the Llama kind: whatever gpu/architectures lists differs in ModelConfig only.

It knows tensors, the batch and the KV pool; nothing of slots, sampling or ranks.
"""

from __future__ import annotations

from functools import partial

import attrs
import torch
import torch.nn.functional as F

from gpu.architectures import QkNorm
from gpu.batch import StepBatch
from gpu.config import ModelConfig
from gpu.kv_pool import KvPool
from gpu.layers.attention import Attention
from gpu.layers.experts import Experts, SharedExpert
from gpu.layers.linear import Linear, make_linear
from gpu.layers.mlp import ClampedGate, GatedMLP, gated
from gpu.layers.norm import NoNorm, Norm, RMSNorm, WholeNorm, WideRMSNorm
from gpu.layers.packed_weight import PackedWeight
from gpu.layers.rope import RotaryEmbedding
from gpu.linear_change import LinearChange
from gpu.weights import Rearrange, WeightLoader, WeightSource


@attrs.frozen(eq=False)
class DecoderLayer:
    """Attention and feed-forward, each between norms (some of which are none) and added to the residual stream."""

    attention_norm: Norm
    attention: Attention
    after_attention: Norm
    mlp_norm: Norm
    mlp: GatedMLP | Experts
    after_mlp: Norm
    window: int | None
    rotary: RotaryEmbedding


class Decoder:
    """Token ids to hidden states to logits."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: torch.Tensor,
        layers: list[DecoderLayer],
        norm: Norm,
        head: Linear,
    ) -> None:
        self.embedding = embedding  # [vocab, hidden]
        self.embedding_scale = torch.tensor(config.embedding_scale, dtype=embedding.dtype)
        self.layers = layers
        self.norm = norm
        self.head = head  # [vocab, hidden]
        self.logit_softcap = config.logit_softcap
        self.rotaries = {layer.rotary for layer in layers}

    @classmethod
    def load(cls, config: ModelConfig, loader: WeightLoader, change: LinearChange | None = None) -> Decoder:
        """Read all weights, and change each linear as soon as its layer is read. Raises
        CheckpointError."""
        embedding, head = _embedding_and_head(config, loader)
        rotaries = {
            rope: RotaryEmbedding(rope, config.head_dim, embedding.dtype, embedding.device)
            for rope in map(config.rope_of, range(config.num_layers))
        }
        return cls(
            config,
            embedding,
            [
                change_linears(_layer(config, loader, layer, rotaries[config.rope_of(layer)]), change)
                for layer in range(config.num_layers)
            ],
            _norm(config, loader, "model.norm", config.hidden_size),
            make_linear(head) if change is None else change.head(make_linear(head)),
        )

    def hidden_states(self, batch: StepBatch, pool: KvPool) -> torch.Tensor:
        """The last layer's output, [tokens, hidden]; the pool holds the tokens' keys and values afterwards."""
        pool.clear(batch.begun_blocks)
        x = F.embedding(batch.token_ids, self.embedding)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        rotations = {rotary: rotary.at(batch.positions) for rotary in self.rotaries}
        for layer in self.layers:
            normed = layer.attention_norm(x)
            attended = layer.attention(normed, rotations[layer.rotary], batch.attention[layer.window], pool)
            x = x + layer.after_attention(attended)
            x = x + layer.after_mlp(layer.mlp(layer.mlp_norm(x)))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] to [rows, vocab] float32, of fresh memory."""
        logits = self.head(self.norm(hidden)).float()
        cap = self.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def change_linears(layer: DecoderLayer, change: LinearChange | None) -> DecoderLayer:
    """The layer with what `change` makes of its linears."""
    if change is None:
        return layer
    layer.attention.qkv, layer.attention.output = change(layer.attention.qkv), change(layer.attention.output)
    mlps = [layer.mlp] if isinstance(layer.mlp, GatedMLP) else layer.mlp.experts
    if isinstance(layer.mlp, Experts):
        layer.mlp.router = change(layer.mlp.router)
        if layer.mlp.shared is not None:
            mlps = [*mlps, layer.mlp.shared.mlp]
            layer.mlp.shared = SharedExpert(layer.mlp.shared.mlp, change(layer.mlp.shared.gate))
    for mlp in mlps:
        mlp.gate_up, mlp.down = change(mlp.gate_up), change(mlp.down)
    return layer


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


def _embedding_and_head(config: ModelConfig, loader: WeightLoader) -> tuple[torch.Tensor, torch.Tensor | PackedWeight]:
    """Looking up a token needs the plain matrix, also where the head is another form of the same."""
    embedding, head = tied_embedding(config, loader.source)
    matrix = loader.matrix([(embedding, config.vocab_size)], config.hidden_size)
    if head == embedding:
        return matrix, loader.also_linear_weight(head, matrix)
    return matrix, loader.linear_weight([(head, config.vocab_size)], config.hidden_size)


def _layer(config: ModelConfig, loader: WeightLoader, layer: int, rotary: RotaryEmbedding) -> DecoderLayer:
    prefix, names = f"model.layers.{layer}.", config.norms

    def norm(name: str | None) -> Norm:
        return NoNorm() if name is None else _norm(config, loader, f"{prefix}{name}", config.hidden_size)

    sparse = config.experts is not None and layer in config.experts.layers
    return DecoderLayer(
        norm(names.before_attention),
        _attention(config, loader, layer, f"{prefix}self_attn."),
        norm(names.after_attention),
        norm(names.before_mlp),
        _experts(config, loader, prefix)
        if sparse
        else _mlp(config, loader, f"{prefix}mlp", config.intermediate_size, config.mlp_bias),
        norm(names.after_mlp),
        config.windows[layer],
        rotary,
    )


def _norm(config: ModelConfig, loader: WeightLoader, name: str, size: int) -> Norm:
    weight = loader.vector([(f"{name}.weight", size)])
    if config.norm_offset:
        return WideRMSNorm(weight.float() + 1.0, config.rms_norm_eps)
    return RMSNorm(weight, config.rms_norm_eps)


def _attention(config: ModelConfig, loader: WeightLoader, layer: int, prefix: str) -> Attention:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv = _parts(prefix, config.qkv, (queries, keys, keys))
    order = config.rope_of(layer).head_order(config.head_dim)

    rearrange = None if order is None else partial(reorder_heads, order, queries + keys)
    weight, bias = _weight_and_bias(loader, qkv, config.hidden_size, config.qkv_bias, rearrange)
    return Attention(
        layer,
        config.num_heads,
        config.num_kv_heads,
        make_linear(weight, bias),
        _linear(loader, [(f"{prefix}o_proj", config.hidden_size)], queries, config.output_bias),
        _qk_norm(config, loader, prefix),
        config.attention_scale,
        config.attention_softcap,
        loader.vector([(f"{prefix}sinks", config.num_heads)]) if config.sinks else None,
    )


def reorder_heads(order: torch.Tensor, count: int, rows: torch.Tensor) -> None:
    """Put the rows of each head, of the first `count` rows [rows, ...], into this order, [head_dim]."""
    heads = rows[:count].unflatten(0, (-1, len(order)))
    heads.copy_(heads[:, order.to(rows.device)])


def _qk_norm(config: ModelConfig, loader: WeightLoader, prefix: str) -> tuple[Norm, Norm] | None:
    if config.qk_norm is QkNorm.NONE:
        return None
    query_name, key_name = f"{prefix}q_norm", f"{prefix}k_norm"
    if config.qk_norm is QkNorm.PER_HEAD:
        return _norm(config, loader, query_name, config.head_dim), _norm(config, loader, key_name, config.head_dim)
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return WholeNorm(_norm(config, loader, query_name, queries)), WholeNorm(_norm(config, loader, key_name, keys))


def _mlp(config: ModelConfig, loader: WeightLoader, prefix: str, size: int, biased: bool = False) -> GatedMLP:
    gate_up = _parts(f"{prefix}.", config.gate_up, (size, size))
    return GatedMLP(
        _linear(loader, gate_up, config.hidden_size, biased),
        _linear(loader, [(f"{prefix}.down_proj", config.hidden_size)], size, biased),
        config.activation,
    )


def _experts(config: ModelConfig, loader: WeightLoader, prefix: str) -> Experts:
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None, "a layer of experts in a model without"
    names = experts.names
    block, biased = f"{prefix}{names.block}", names.biased
    gate = gated if experts.limit is None else ClampedGate(experts.limit)

    def expert(index: int) -> GatedMLP:
        inner = f"{block}.experts.{index}."
        return GatedMLP(
            _linear(loader, [(inner + names.gate, experts.size), (inner + names.up, experts.size)], hidden, biased),
            _linear(loader, [(inner + names.down, hidden)], experts.size, biased),
            config.activation,
            gate,
        )

    shared = None
    if experts.shared_size is not None:
        shared = SharedExpert(
            _mlp(config, loader, f"{block}.shared_expert", experts.shared_size),
            _linear(loader, [(f"{block}.shared_expert_gate", 1)], hidden),
        )
    router = _linear(loader, [(f"{block}.{names.router}", experts.count)], hidden, biased)
    return Experts(router, [expert(i) for i in range(experts.count)], experts.per_token, experts.normalised, shared)


def _parts(prefix: str, names: tuple[str, ...], sizes: tuple[int, ...]) -> list[tuple[str, int]]:
    """Names with their rows: one name holds them all."""
    if len(names) == 1:
        return [(f"{prefix}{names[0]}", sum(sizes))]
    return [(f"{prefix}{name}", size) for name, size in zip(names, sizes, strict=True)]


def _linear(loader: WeightLoader, parts: list[tuple[str, int]], columns: int, biased: bool = False) -> Linear:
    return make_linear(*_weight_and_bias(loader, parts, columns, biased))


def _weight_and_bias(
    loader: WeightLoader,
    parts: list[tuple[str, int]],
    columns: int,
    biased: bool,
    rearrange: Rearrange | None = None,
) -> tuple[torch.Tensor | PackedWeight, torch.Tensor | None]:
    weight = loader.linear_weight([(f"{name}.weight", rows) for name, rows in parts], columns, rearrange)
    bias = loader.vector([(f"{name}.bias", rows) for name, rows in parts], rearrange) if biased else None
    return weight, bias
