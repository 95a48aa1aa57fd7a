"""The decoder-only transformer of the Llama kind: whatever gpu/architectures lists differs in ModelConfig only.

It knows tensors, the batch and the KV pool; nothing of slots, sampling or ranks: pieces that ranks share have the group
that they need. One that holds a later stage's layers has neither embedding nor head.
"""

from __future__ import annotations

import torch

from gpu.batch import StepBatch
from gpu.config import ModelConfig
from gpu.groups.groups import Groups
from gpu.kv_pool import KvPool
from gpu.layers.linear import Linear
from gpu.layers.norm import NoNorm, Norm
from gpu.layers.parallel import Embedding, PlainEmbedding
from gpu.layers.rope import RotaryEmbedding
from gpu.linear_change import LinearChange
from gpu.models.decoder_layer import DecoderLayer, change_linears
from gpu.models.decoder_loader import DecoderLoader
from gpu.shard import Shard
from gpu.weights import WeightLoader


class Decoder:
    """Token ids to hidden states to logits."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: torch.Tensor,
        layers: list[DecoderLayer],
        norm: Norm,
        head: Linear | None,
        look_up: Embedding | None = None,
    ) -> None:
        """`look_up` is how rows of `embedding` are found, where that is not all there is to it."""
        self.embedding = embedding  # [vocab, hidden], or this rank's rows; of a later stage none
        self.embedding_scale = torch.tensor(config.embedding_scale, dtype=embedding.dtype)
        self.layers = layers
        self.norm = norm
        self.head = head  # [vocab, hidden]; None of a later stage
        self.look_up = look_up or PlainEmbedding(embedding)
        self.logit_softcap = config.logit_softcap
        self.rotaries = {layer.rotary for layer in layers}

    @classmethod
    def load(
        cls, config: ModelConfig, loader: WeightLoader, change: LinearChange | None = None, groups: Groups | None = None
    ) -> Decoder:
        """Read all weights that this rank of `groups` holds, and change each linear as soon as its layer is read.
        Without `groups` there is no other. Raises CheckpointError; StartError where the model cannot be cut so."""
        groups = groups or Groups()
        shard = Shard.of(config, groups)
        pieces = DecoderLoader(config, loader, shard, groups)
        look_up, head_weight = None, None
        if shard.has_ends:
            look_up, embedding, head_weight = pieces.embedding()
        else:
            embedding = pieces.no_embedding()
        rotaries = {
            rope: RotaryEmbedding(rope, config.head_dim, embedding.dtype, embedding.device)
            for rope in map(config.rope_of, shard.layers)
        }
        layers = [
            change_linears(pieces.layer(layer, rotaries[config.rope_of(layer)]), change) for layer in shard.layers
        ]
        if head_weight is None:
            return cls(config, embedding, layers, NoNorm(), None)
        norm = pieces.norm("model.norm", config.hidden_size)
        return cls(config, embedding, layers, norm, pieces.head(head_weight, change), look_up)

    def hidden_states(self, batch: StepBatch, pool: KvPool) -> torch.Tensor:
        """The last layer's output, [tokens, hidden]; the pool holds the tokens' keys and values afterwards. Of a model
        in one stage."""
        return self.run_layers(batch, self.embed(batch), pool)

    def embed(self, batch: StepBatch) -> torch.Tensor:
        """What the first layer gets, [tokens, hidden]. Of the first stage."""
        assert self.head is not None, "a later stage has no embedding"
        x = self.look_up(batch.token_ids)
        return x if self.embedding_scale == 1.0 else x * self.embedding_scale

    def run_layers(self, batch: StepBatch, x: torch.Tensor, pool: KvPool) -> torch.Tensor:
        """What this stage's layers make of the output of those before them, both [tokens, hidden]."""
        pool.clear(batch.begun_blocks)
        rotations = {rotary: rotary.at(batch.positions) for rotary in self.rotaries}
        for layer in self.layers:
            normed = layer.attention_norm(x)
            attended = layer.attention(normed, rotations[layer.rotary], batch.attention[layer.window], pool)
            x = x + layer.after_attention(attended)
            x = x + layer.after_mlp(layer.mlp(layer.mlp_norm(x)))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] to [rows, vocab] float32, of fresh memory. Of the first stage, all of whose ranks call it."""
        assert self.head is not None, "a later stage has no head"
        logits = self.head(self.norm(hidden)).float()
        cap = self.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)
