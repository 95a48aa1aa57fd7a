"""The decoder-only transformer of the Llama kind: Llama, SmolLM2, Mistral, Qwen2 and Qwen3 differ in ModelConfig only.

It knows tensors, the batch and the KV pool; nothing of slots, sampling or ranks.
"""

from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F

from gpu.batch import StepBatch
from gpu.config import ModelConfig
from gpu.kv_pool import KvPool
from gpu.layers.attention import Attention
from gpu.layers.linear import Linear, can_pack, make_linear
from gpu.layers.mlp import GatedMLP
from gpu.layers.norm import RMSNorm
from gpu.layers.rope import RotaryEmbedding
from gpu.weights import WeightLoader, WeightSource


@attrs.frozen(eq=False)
class DecoderLayer:
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: GatedMLP
    window: int | None


class Decoder:
    """Token ids to hidden states to logits."""

    def __init__(
        self, embedding: torch.Tensor, layers: list[DecoderLayer], norm: RMSNorm, head: Linear, rotary: RotaryEmbedding
    ) -> None:
        self.embedding = embedding  # [vocab, hidden]
        self.layers = layers
        self.norm = norm
        self.head = head  # [vocab, hidden]
        self.rotary = rotary

    @classmethod
    def load(cls, config: ModelConfig, loader: WeightLoader) -> Decoder:
        """Read all weights. Raises CheckpointError."""
        embedding, head = _embedding_and_head(config, loader)
        if head is embedding and can_pack(head):
            loader.num_bytes += head.nbytes  # the packed head is a second copy: looking up a token needs the plain one
        return cls(
            embedding,
            [_layer(config, loader, layer) for layer in range(config.num_layers)],
            RMSNorm(loader.vector([("model.norm.weight", config.hidden_size)]), config.rms_norm_eps),
            make_linear(head),
            RotaryEmbedding(config.rope, config.head_dim, embedding.dtype, embedding.device),
        )

    def hidden_states(self, batch: StepBatch, pool: KvPool) -> torch.Tensor:
        """The last layer's output, [tokens, hidden]; the pool holds the tokens' keys and values afterwards."""
        pool.clear(batch.begun_blocks)
        x = F.embedding(batch.token_ids, self.embedding)
        rotation = self.rotary.at(batch.positions)
        for layer in self.layers:
            x = x + layer.attention(layer.attention_norm(x), rotation, batch.attention[layer.window], pool)
            x = x + layer.mlp(layer.mlp_norm(x))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] to [rows, vocab] float32, of fresh memory."""
        return self.head(self.norm(hidden)).float()


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


def _embedding_and_head(config: ModelConfig, loader: WeightLoader) -> tuple[torch.Tensor, torch.Tensor]:
    embedding, head = tied_embedding(config, loader.source)
    matrix = loader.matrix([(embedding, config.vocab_size)], config.hidden_size)
    if head == embedding:
        return matrix, matrix
    return matrix, loader.matrix([(head, config.vocab_size)], config.hidden_size)


def _layer(config: ModelConfig, loader: WeightLoader, layer: int) -> DecoderLayer:
    prefix = f"model.layers.{layer}."
    hidden, eps = config.hidden_size, config.rms_norm_eps
    gate_up = [(f"{prefix}mlp.{name}_proj", config.intermediate_size) for name in ("gate", "up")]

    def norm(name: str, size: int) -> RMSNorm:
        return RMSNorm(loader.vector([(f"{prefix}{name}.weight", size)]), eps)

    return DecoderLayer(
        norm("input_layernorm", hidden),
        _attention(config, loader, layer, f"{prefix}self_attn."),
        norm("post_attention_layernorm", hidden),
        GatedMLP(
            _linear(loader, gate_up, hidden, config.mlp_bias),
            _linear(loader, [(f"{prefix}mlp.down_proj", hidden)], config.intermediate_size, config.mlp_bias),
        ),
        config.windows[layer],
    )


def _attention(config: ModelConfig, loader: WeightLoader, layer: int, prefix: str) -> Attention:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = [(f"{prefix}q_proj", queries), (f"{prefix}k_proj", keys), (f"{prefix}v_proj", keys)]
    qk_norm = None
    if config.qk_norm:
        names = (f"{prefix}q_norm.weight", f"{prefix}k_norm.weight")
        query_norm, key_norm = (RMSNorm(loader.vector([(n, config.head_dim)]), config.rms_norm_eps) for n in names)
        qk_norm = (query_norm, key_norm)
    return Attention(
        layer,
        config.num_heads,
        config.num_kv_heads,
        _linear(loader, parts, config.hidden_size, config.qkv_bias),
        _linear(loader, [(f"{prefix}o_proj", config.hidden_size)], queries, config.output_bias),
        qk_norm,
    )


def _linear(loader: WeightLoader, parts: list[tuple[str, int]], columns: int, biased: bool) -> Linear:
    weight = loader.matrix([(f"{name}.weight", rows) for name, rows in parts], columns)
    bias = loader.vector([(f"{name}.bias", rows) for name, rows in parts]) if biased else None
    return make_linear(weight, bias)
