"""What the KV pool, the batch and the runner need to know of a model, however it is computed.

gpu/config has it from config.json; gpu/models/transformers_model learns it from the model itself.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ModelShape:
    """Sizes of a decoder-only transformer, seen from outside."""

    vocab_size: int
    num_layers: int
    """Layers with a KV cache."""
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    windows: tuple[int | None, ...]
    """Per layer: how many positions a token sees, itself included; None is all."""
    dtype: str | None
    """What the weights were saved in: "float32", "bfloat16", "float16" or None."""
