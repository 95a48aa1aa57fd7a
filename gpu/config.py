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

from gpu.architectures import ARCHITECTURES, Architecture, NormNames, QkNorm, Windows
from gpu.experts_config import ExpertsConfig
from gpu.layers.mlp import ACTIVATIONS
from gpu.model_shape import ModelShape
from gpu.rope_config import RopeConfig
from protocol.errors import CheckpointError, UnknownVariantError


@attrs.frozen(kw_only=True)
class ModelConfig(ModelShape):
    """One decoder-only transformer of the Llama kind, with its variants."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    rms_norm_eps: float
    norms: NormNames
    norm_offset: bool
    """The norms' weights are stored less 1, and the norms are computed in float32 throughout."""
    embedding_scale: float
    """What embeddings are multiplied with."""
    rope: RopeConfig
    local_rope: RopeConfig | None
    """The rotation of layers with a window, if it is another one."""
    tie_word_embeddings: bool | None
    """None: config.json does not say; then the embedding is the head exactly if there is no other."""
    qkv: tuple[str, ...]
    """Names of the projections to queries, keys and values: one that holds all three, or three."""
    qkv_bias: bool
    output_bias: bool
    qk_norm: QkNorm
    attention_scale: float
    """Scores are multiplied with it."""
    attention_softcap: float | None
    """Scores are bounded smoothly to ± this."""
    sinks: bool
    """Each head has one more score, learnt, that takes of the softmax and adds nothing to the sum."""
    gate_up: tuple[str, ...]
    """Names of the feed-forward block's first projections: one that holds both, or two."""
    activation: str
    """A key of gpu.layers.mlp.ACTIVATIONS."""
    mlp_bias: bool
    experts: ExpertsConfig | None
    logit_softcap: float | None
    """Logits are bounded smoothly to ± this."""

    @classmethod
    def read(cls, checkpoint: Path) -> ModelConfig:
        """Read `checkpoint`/config.json. Raises CheckpointError naming the file and what is wrong with it;
        UnknownVariantError if it is a model that is just not computed here."""
        path = checkpoint / "config.json"
        raw = read_config(path)
        try:
            return cls.from_dict(raw)
        except CheckpointError as error:
            raise type(error)(f"{path}: {error.message}") from error

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """From config.json's content. Raises CheckpointError naming the key and its value."""
        architecture, has_head = _architecture(raw)
        traits = ARCHITECTURES[architecture]
        activation = _activation(raw, traits)
        _refuse_what_is_not_computed(raw, traits)
        hidden_size = _positive(raw, "hidden_size")
        num_heads = _positive(raw, "num_attention_heads")
        num_layers = _positive(raw, "num_hidden_layers")
        num_kv_heads = _positive(raw, "num_key_value_heads", num_heads)
        head_dim = _positive(raw, "head_dim", traits.head_dim or hidden_size // num_heads)
        if num_heads % num_kv_heads:
            raise CheckpointError(
                f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}"
            )
        if head_dim % 2:
            raise CheckpointError(f"head_dim {head_dim} is odd, which rotary embeddings cannot be")
        max_position_embeddings = _positive(raw, "max_position_embeddings")
        biased = bool(raw.get(traits.bias_key, traits.qkv_bias)) if traits.bias_key else traits.qkv_bias
        ropes = RopeConfig.from_config(raw, traits, head_dim, max_position_embeddings)
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
            norms=traits.norms,
            norm_offset=traits.norm_offset,
            embedding_scale=hidden_size**0.5 if traits.scaled_embedding else 1.0,
            max_position_embeddings=max_position_embeddings,
            rope=ropes[0],
            local_rope=ropes[1],
            tie_word_embeddings=raw.get("tie_word_embeddings") if has_head else True,
            qkv=traits.qkv,
            qkv_bias=biased,
            output_bias=biased and traits.output_bias,
            qk_norm=traits.qk_norm,
            attention_scale=_attention_scale(raw, head_dim),
            attention_softcap=_softcap(raw, "attn_logit_softcapping") if traits.softcaps else None,
            sinks=traits.sinks,
            gate_up=traits.gate_up,
            activation=activation,
            mlp_bias=traits.mlp_bias and bool(raw.get("mlp_bias", False)),
            experts=None if traits.experts is None else ExpertsConfig.from_dict(raw, traits.experts, num_layers),
            logit_softcap=_softcap(raw, "final_logit_softcapping"),
            windows=_windows(raw, traits, num_layers),
            dtype=raw.get("dtype") or raw.get("torch_dtype"),
        )

    @property
    def is_plain(self) -> bool:
        """Whether nothing distinguishes the model from Llama, Mistral, Qwen2 and Qwen3: norms before the blocks, one
        rotation over whole heads, SiLU, no soft caps, no sinks, no experts."""
        return (
            self.norms == NormNames()
            and not self.norm_offset
            and self.embedding_scale == 1.0
            and self.local_rope is None
            and self.rope.head_order(self.head_dim) is None
            and self.qk_norm is not QkNorm.WHOLE
            and self.attention_scale == self.head_dim**-0.5
            and self.attention_softcap is None
            and not self.sinks
            and len(self.qkv) == 3
            and len(self.gate_up) == 2
            and self.activation in ("silu", "swish")
            and self.experts is None
            and self.logit_softcap is None
        )

    def rope_of(self, layer: int) -> RopeConfig:
        """The rotation of this layer."""
        return self.rope if self.local_rope is None or self.windows[layer] is None else self.local_rope

    def for_length(self, max_model_len: int | None) -> ModelConfig:
        """The same model with sequences up to this length; None is the model's own limit.

        It matters to rotations that have one set of frequencies for short contexts and another for long ones.
        """
        return attrs.evolve(self, rope=self.rope.for_length(max_model_len or self.max_position_embeddings))


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in this file. Raises CheckpointError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path} is no JSON object: {error}") from error


def _architecture(raw: Mapping[str, Any]) -> tuple[str, bool]:
    """The first class name that is known, and whether it has a head: what is trained to embed is often saved without,
    as LlamaModel say. Logits are then made with the embedding."""
    names = raw.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name), True
        if (whole := f"{str(name).removesuffix('Model')}ForCausalLM") in ARCHITECTURES:
            return whole, False
    raise UnknownVariantError(f"architectures {names} is none of those in gpu/architectures.py")


def _activation(raw: Mapping[str, Any], traits: Architecture) -> str:
    key = traits.activation_key
    name = traits.activation if key is None else raw.get(key) or traits.activation
    if name not in ACTIVATIONS:
        raise UnknownVariantError(f"{key} {name!r} is not computed here, only {', '.join(ACTIVATIONS)}")
    return str(name)


def _refuse_what_is_not_computed(raw: Mapping[str, Any], traits: Architecture) -> None:
    if raw.get("is_causal") is False:
        raise CheckpointError("is_causal is false: tokens would see those after them, which is not computed here")
    if quantization := raw.get("quantization_config"):
        method = quantization.get("quant_method", "?") if isinstance(quantization, dict) else quantization
        if not (traits.mxfp4 and method == "mxfp4"):
            raise CheckpointError(f"quantization_config with quant_method {method!r} is not computed here")
    for key in ("use_bidirectional_attention", "clip_qkv", "attention_sink"):
        if raw.get(key):
            raise UnknownVariantError(f"{key} {raw[key]!r} is not computed here")


def _attention_scale(raw: Mapping[str, Any], head_dim: int) -> float:
    """Gemma 2 and 3 have their own; of the others it is said nowhere."""
    return float(_positive(raw, "query_pre_attn_scalar", head_dim)) ** -0.5


def _softcap(raw: Mapping[str, Any], key: str) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or value <= 0:
        raise CheckpointError(f"{key} is {value!r}, not a number above 0")
    return float(value)


def _windows(raw: Mapping[str, Any], traits: Architecture, num_layers: int) -> tuple[int | None, ...]:
    """Sliding windows by layer: of all layers, of those that layer_types names, or else by the family's rule."""
    window = raw.get("sliding_window")
    unused = traits.window_switch and not raw.get("use_sliding_window", False)
    if traits.windows is Windows.NONE or window is None or unused:
        return (None,) * num_layers
    _positive(raw, "sliding_window")
    if traits.windows is Windows.ALL:
        return (window,) * num_layers
    kinds = raw.get("layer_types") or _layer_types(raw, traits, num_layers)
    if len(kinds) != num_layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise CheckpointError(f"layer_types {kinds} does not name full_attention or sliding_attention per layer")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _layer_types(raw: Mapping[str, Any], traits: Architecture, num_layers: int) -> list[str]:
    if traits.windows is Windows.UPPER:
        first = int(raw.get("max_window_layers", 28))
        sliding = [layer >= first for layer in range(num_layers)]
    elif traits.windows is Windows.PATTERN:
        every = _positive(raw, "sliding_window_pattern", traits.window_pattern)
        sliding = [(layer + 1) % every != 0 for layer in range(num_layers)]
    else:
        raise CheckpointError("use_sliding_window is true, and there are no layer_types that say of which layers")
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def _positive(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{key} is {value!r}, not a whole number above 0")
    return value
