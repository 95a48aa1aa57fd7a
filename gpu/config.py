"""What a model is, read once from a Hugging Face config.json, so that nothing else looks into that dictionary.

Used by gpu/models (shapes and variants), gpu/kv_pool (bytes per token) and gpu/torch_runner. Whatever would change the
arithmetic and is not known here is refused by name: a model that is silently computed wrong is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec

from gpu.layers.rope import RopeConfig
from protocol.errors import CheckpointError


@attrs.frozen
class ModelConfig:
    """One decoder-only transformer of the Llama kind, with its variants."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool | None
    """None: config.json does not say; then the embedding is the head exactly if there is no other."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMSNorm over each head of queries and keys before the rotation (Qwen3)."""
    windows: tuple[int | None, ...]
    """Per layer: how many positions a token sees, itself included; None is all."""
    dtype: str | None
    """What the weights were saved in: "float32", "bfloat16", "float16" or None."""

    @classmethod
    def read(cls, checkpoint: Path) -> ModelConfig:
        """Read `checkpoint`/config.json. Raises CheckpointError naming the file and what is wrong with it."""
        path = checkpoint / "config.json"
        try:
            raw = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{path} is no JSON object: {error}") from error
        try:
            return cls.from_dict(raw)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error.message}") from error

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """From config.json's content. Raises CheckpointError naming the key and its value."""
        architecture = _architecture(raw)
        _refuse_what_is_not_computed(raw)
        hidden_size = _positive(raw, "hidden_size")
        num_heads = _positive(raw, "num_attention_heads")
        num_layers = _positive(raw, "num_hidden_layers")
        num_kv_heads = _positive(raw, "num_key_value_heads", num_heads)
        head_dim = _positive(raw, "head_dim", 128 if architecture == "Qwen3ForCausalLM" else hidden_size // num_heads)
        if num_heads % num_kv_heads:
            raise CheckpointError(
                f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}"
            )
        if head_dim % 2:
            raise CheckpointError(f"head_dim {head_dim} is odd, which rotary embeddings cannot be")
        max_position_embeddings = _positive(raw, "max_position_embeddings")
        attention_bias = architecture in ATTENTION_BIAS_KEY and bool(raw.get("attention_bias", False))
        return cls(
            architecture=architecture,
            vocab_size=_positive(raw, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_positive(raw, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            max_position_embeddings=max_position_embeddings,
            rope=RopeConfig.from_dict(raw, max_position_embeddings),
            tie_word_embeddings=raw.get("tie_word_embeddings"),
            qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
            output_bias=attention_bias,
            mlp_bias=architecture == "LlamaForCausalLM" and bool(raw.get("mlp_bias", False)),
            qk_norm=architecture == "Qwen3ForCausalLM",
            windows=_windows(raw, architecture, num_layers),
            dtype=raw.get("dtype") or raw.get("torch_dtype"),
        )


ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ATTENTION_BIAS_KEY = ("LlamaForCausalLM", "Qwen3ForCausalLM")
"""Those whose config.json has a say about biases of the attention's linears."""


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    raise CheckpointError(f"architectures {names} is none of those that are served: {', '.join(ARCHITECTURES)}")


def _refuse_what_is_not_computed(raw: Mapping[str, Any]) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"hidden_act {raw['hidden_act']!r} is not computed here, only 'silu'")
    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method", "?") if isinstance(quantization, dict) else quantization
        raise CheckpointError(f"quantization_config with quant_method {method!r} is not computed here")
    factor = raw.get("partial_rotary_factor", (raw.get("rope_parameters") or {}).get("partial_rotary_factor"))
    if factor not in (None, 1, 1.0):
        raise CheckpointError(f"partial_rotary_factor {factor!r} is not computed here, only 1")


def _windows(raw: Mapping[str, Any], architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """Sliding windows by layer: Mistral has one for all layers, Qwen for those that it names."""
    window = raw.get("sliding_window")
    qwen = architecture.startswith("Qwen")
    if architecture == "LlamaForCausalLM" or window is None or (qwen and not raw.get("use_sliding_window", False)):
        return (None,) * num_layers
    _positive(raw, "sliding_window")
    if not qwen:
        return (window,) * num_layers
    first = int(raw.get("max_window_layers", 28))
    default = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    kinds = raw.get("layer_types") or default
    if len(kinds) != num_layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise CheckpointError(f"layer_types {kinds} does not name full_attention or sliding_attention per layer")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _positive(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{key} is {value!r}, not a whole number above 0")
    return value
